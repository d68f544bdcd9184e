"""Recipes: how the bytes of an optimized graph's weight follow from weights of the original graph."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_COLUMNS = "/columns"  # suffix that rewriting gives a convolution's weight as the second operand of a product
_TRANSPOSED = "_transposed"  # suffix that the optimizer gives a weight whose transpose it stores
_SCALED = "/scaled"  # suffix that rewriting gives a matrix whose columns it multiplied
_CODES = "_16_bits"  # suffix that the optimizer gives 8-bit codes that it stores as float16
_QUANTIZED = "_quantized"  # suffix that ONNX Runtime's quantizer gives codes; their scale has _scale
_CODES_TURNED = "_8_bits"  # suffix that the optimizer gives 8-bit floats that it joins or transposes
_NHWC = "_nhwc"  # suffix that the layout pass gives the weight of a convolution
_HEADS = re.compile(r"(.+)/heads(\d)_(\d+)_(\d+)")  # name of a weight whose heads attention/head_axis.py pads
_ORDERS = ((0, 2, 3, 1), (2, 3, 1, 0))  # of such a weight: graph/layout/weights.py

Weights = Mapping[str, onnx.TensorProto]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The named weights joined along their last axis, or with `rows` along their first, then changed as the flags say.

    names: NAME/headsA_S_P is a weight with zeros behind every S elements along axis A, so that each group has P.
    columns: the one weight is that of a convolution, (outputs, inputs, *kernel), taken as the second operand of a
    product: (inputs * kernel, outputs) with two spatial axes, (kernel * inputs, outputs) with one, as
    graph/rewrite/convolutions.py lays it out. order: the one weight's dims are permuted. factors, scale: the one
    weight's columns are multiplied by the elements of a weight of this name over `scale`, in float64, and rounded.
    transposed: the matrix that results is transposed. first_bytes: the first bytes of the one weight are taken.
    widened: int8 codes become float16 at the end. scales: of each weight of codes, which are multiplied by it over the
    largest of all.
    """

    names: tuple[str, ...]
    columns: bool = False
    order: tuple[int, ...] = ()
    factors: str = ""
    scale: float = 1.0
    transposed: bool = False
    first_bytes: int | None = None
    widened: bool = False
    rows: bool = False
    scales: tuple[str, ...] = ()

    def data(self, weights: Weights, dims: Sequence[int]) -> bytes | None:
        """The raw bytes of a tensor of these dims; None where the weights do not have the shapes that this takes."""
        found = [_weight(weights, name) for name in self.names]
        arrays = [array for array in found if array is not None]
        if len(arrays) < len(found) or (self.factors and self.factors not in weights):
            return None
        if self.scales:
            arrays = _in_steps_of_one(arrays, [numpy_helper.to_array(weights[name]) for name in self.scales])
        changes = (self.names[0] not in weights, self.columns, self.order, self.factors, self.transposed, self.widened)
        if len(self.names) == 1 and not any(changes):
            return weights[self.names[0]].raw_data[: self.first_bytes]
        if self.rows:
            fits = all(a.ndim and a.shape[1:] == arrays[0].shape[1:] for a in arrays)
            return np.concatenate(arrays).tobytes() if fits else None
        if any(a.shape[:-1] != arrays[0].shape[:-1] or not a.ndim for a in arrays):
            return None
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
        if self.columns:
            if array.ndim not in (3, 4):
                return None
            kernel_and_inputs = (2, 1) if array.ndim == 3 else (1, 2, 3)
            array = array.transpose(*kernel_and_inputs, 0).reshape(-1, len(array))
        if self.order:
            if array.ndim != len(self.order):
                return None
            array = array.transpose(self.order)
        if self.factors:
            array = _scaled(array, numpy_helper.to_array(weights[self.factors]), self.scale)
        if self.transposed:
            if len(dims) != 2 or array.size != dims[0] * dims[1]:
                return None
            array = array.reshape(dims[1], dims[0]).T
        return np.ascontiguousarray(array.astype(np.float16) if self.widened else array).tobytes()

    def reads(self, dtype: int) -> int:
        """The dtype of the weights that this reads for a tensor of a dtype."""
        return int(onnx.TensorProto.INT8) if self.widened else dtype

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Recipe:
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})


class Recipes:
    """Finds recipes for tensors among the weights of one original graph."""

    def __init__(self, source: onnx.ModelProto):
        self._weights = {t.name: t for t in source.graph.initializer}

    @functools.cached_property
    def _names(self) -> dict[tuple[int, bytes], str]:
        """Weights by dtype and content."""
        return {_digest(tensor): name for name, tensor in self._weights.items()}

    def find(self, tensor: onnx.TensorProto) -> Recipe | None:
        """A recipe that gives exactly the tensor's bytes, from weights of its dtype or from codes."""
        for recipe in self._candidates(tensor):
            bases = map(_base, recipe.names)
            dtypes = {self._weights[name].data_type for name in bases if name in self._weights}
            if (
                dtypes == {recipe.reads(tensor.data_type)}
                and recipe.data(self._weights, tensor.dims) == tensor.raw_data
            ):
                return recipe
        return None

    def _candidates(self, tensor: onnx.TensorProto) -> Iterator[Recipe]:
        """Recipes worth a try: first what the tensor's name says, which costs least, then what its content says."""
        base, transposed = tensor.name.removesuffix(_TRANSPOSED), tensor.name.endswith(_TRANSPOSED)
        if base.endswith(_CODES):
            names = tuple(base.removesuffix(_CODES).split("+"))
            yield from (Recipe(names, transposed=turned, widened=True) for turned in (True, False))
            scales = tuple(f"{name.removesuffix(_QUANTIZED)}_scale" for name in names)
            if all(name in self._weights for name in scales):
                yield from (Recipe(names, transposed=turn, widened=True, scales=scales) for turn in (True, False))
        if base.endswith(_CODES_TURNED):
            yield Recipe(tuple(base.removesuffix(_CODES_TURNED).split("+")), transposed=True)
        if base.endswith(_COLUMNS):
            yield Recipe((base.removesuffix(_COLUMNS),), columns=True, transposed=transposed)
        if _NHWC in tensor.name:
            name = tensor.name[: tensor.name.rindex(_NHWC)]
            yield from (Recipe((name,), order=order) for order in _ORDERS)
        if base.endswith(_SCALED):
            yield from self._scaled(base.removesuffix(_SCALED), tensor, transposed)
        yield Recipe(tuple(base.split("+")), transposed=transposed)
        if "+" in base:
            yield Recipe(tuple(base.split("+")), rows=True)
        same = self._names.get(_digest(tensor))  # the dims may differ: those of a weight may have been merged
        if same is not None:
            yield Recipe((same,))
        if len(tensor.dims) == 2:
            turned = self._names.get(_digest(_transposed(tensor)))
            if turned is not None:
                yield Recipe((turned,), transposed=True)
        size = len(tensor.raw_data)
        for weight in self._weights.values():  # the first rows of a table, of positions for example
            if weight.data_type == tensor.data_type and weight.raw_data[:size] == tensor.raw_data:
                yield Recipe((weight.name,), first_bytes=size)

    def _scaled(self, name: str, tensor: onnx.TensorProto, transposed: bool) -> Iterator[Recipe]:
        """A matrix times each vector that fits its columns. The power of two in between follows from the magnitudes."""
        if name not in self._weights:
            return
        array = numpy_helper.to_array(self._weights[name])
        largest = np.abs(numpy_helper.to_array(tensor).astype(np.float64)).max(initial=0.0)
        for vector in self._weights.values():
            if np.prod(vector.dims) not in (1, array.shape[-1]) or vector.data_type != tensor.data_type:
                continue
            product = np.abs(_scaled(array.astype(np.float64), numpy_helper.to_array(vector), 1.0)).max(initial=0.0)
            if largest > 0 and product > 0:
                scale = float(2.0 ** np.round(np.log2(product / largest)))
                yield Recipe((name,), factors=vector.name, scale=scale, transposed=transposed)


def _base(name: str) -> str:
    """The weight of a name in a recipe."""
    found = _HEADS.fullmatch(name)
    return found[1] if found else name


def _weight(weights: Weights, name: str) -> np.ndarray | None:
    """A weight, with padded heads where the name says so; None where there is none whose shape this fits."""
    found = _HEADS.fullmatch(name)
    if name in weights or found is None:
        return numpy_helper.to_array(weights[name]) if name in weights else None
    axis, size, padded = map(int, found.groups()[1:])
    array = numpy_helper.to_array(weights[found[1]]) if found[1] in weights else None
    if array is None or array.ndim <= axis or array.shape[axis] % size:
        return None
    return _padded(array, axis, size, padded)


def _in_steps_of_one(codes: Sequence[np.ndarray], scales: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Codes of one scale each times that over the largest, as graph/passes/codes/code_operands.py computes them."""
    wide = [scale.astype(np.float32) for scale in scales]
    step = max(scale.max() for scale in wide)
    return [array * (scale / step) for array, scale in zip(codes, wide, strict=True)]


def _scaled(array: np.ndarray, factors: np.ndarray, scale: float) -> np.ndarray:
    exact = array.astype(np.float64) * factors.astype(np.float64).reshape(-1) / scale
    return exact.astype(array.dtype)


def _padded(array: np.ndarray, axis: int, size: int, padded: int) -> np.ndarray:
    """Zeros behind every `size` elements along an axis, so that there are `padded`."""
    groups = np.split(array, array.shape[axis] // size, axis)
    zeros = np.zeros_like(np.take(groups[0], [0] * (padded - size), axis))
    return np.concatenate([part for group in groups for part in (group, zeros)], axis)


def _transposed(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(tensor).T))


def _digest(tensor: onnx.TensorProto) -> tuple[int, bytes]:
    return tensor.data_type, hashlib.sha256(tensor.raw_data).digest()

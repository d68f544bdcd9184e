"""Makes weights of others: small ones in memory, others in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT})  # of weights that rules change
_IN_MEMORY = 1 << 20  # bytes
# Of a channel of weights, in the 2-norm: about twice what rounding costs where no weight is subnormal.
_MAX_LOST = 2.0**-10
_CHUNK = 1 << 20  # bytes joined at a time: in cache, and never a second copy of the weight in memory


class Joiner:
    """Makes weights of others. Large ones go to a file in `folder`, which has to outlive the model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def columns(self, tensors: Sequence[ir.TensorProtocol], name: str) -> ir.TensorProtocol:
        """The tensors, of one dtype and the same first dims, joined along the last axis."""
        dtype, arrays = tensors[0].dtype, [t.numpy() for t in tensors]
        size = sum(a.nbytes for a in arrays)
        if size <= _IN_MEMORY:
            return ir.Tensor(np.concatenate(arrays, axis=-1), dtype=dtype, name=name)
        shape = (*arrays[0].shape[:-1], sum(a.shape[-1] for a in arrays))
        return self._in_file(_merged_rows(arrays), shape, dtype, name)

    def rows(self, tensors: Sequence[ir.TensorProtocol], name: str) -> ir.TensorProtocol:
        """The tensors, of one dtype and the same last dims, joined along the first axis."""
        dtype, arrays = tensors[0].dtype, [t.numpy() for t in tensors]
        if sum(a.nbytes for a in arrays) <= _IN_MEMORY:
            return ir.Tensor(np.concatenate(arrays), dtype=dtype, name=name)
        shape = (sum(len(a) for a in arrays), *arrays[0].shape[1:])
        return self._in_file(
            (np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays), shape, dtype, name
        )

    def constant(self, array: np.ndarray, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
        """A new weight as a tensor."""
        if array.nbytes <= _IN_MEMORY:
            return ir.Tensor(array, dtype=dtype, name=name)
        return self._in_file([array.reshape(-1).view(np.uint8).data], array.shape, dtype, name)

    def _in_file(
        self, parts: Iterable[memoryview], shape: Sequence[int], dtype: ir.DataType, name: str
    ) -> ir.ExternalTensor:
        with tempfile.NamedTemporaryFile(dir=self._folder.absolute(), suffix=".weight", delete=False) as file:
            for part in parts:
                file.write(part)
            size = file.tell()
        return ir.ExternalTensor(file.name, 0, size, dtype, shape=ir.Shape(shape), name=name, base_dir="")


def _merged_rows(arrays: Sequence[np.ndarray]) -> Iterator[memoryview]:
    """The bytes of the arrays joined along the last axis, some rows at a time. Each yield reuses one buffer."""
    flat = [a.reshape(-1, a.shape[-1]) for a in arrays]
    width = sum(a.shape[-1] for a in flat)
    step = max(1, _CHUNK // (width * flat[0].itemsize))
    buffer = np.empty((step, width), flat[0].dtype)
    for start in range(0, len(flat[0]), step):
        rows = buffer[: len(flat[0]) - start]
        np.concatenate([a[start : start + step] for a in flat], axis=-1, out=rows)
        yield rows.view(np.uint8).data


def array_of(value: ir.Value) -> np.ndarray:
    """A constant in float64."""
    assert value.const_value is not None
    return value.const_value.numpy().astype(np.float64)


def rounded(array: np.ndarray, dtype: ir.DataType, name: str) -> ir.Tensor:
    """A float64 array as a tensor of this dtype; infinity where a number is too large."""
    with np.errstate(over="ignore"):
        return ir.Tensor(np.asarray(array.astype(dtype.numpy()), order="C"), dtype=dtype, name=name)


def loses_precision(exact: np.ndarray, stored: ir.Tensor, channels: int) -> bool:
    """Whether rounding to float16 makes weights subnormal to an effect. channels: the axis that counts channels."""
    if stored.dtype != ir.DataType.FLOAT16:
        return False
    rows = np.moveaxis(exact, channels, 0).reshape(exact.shape[channels], -1)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.moveaxis(stored.numpy().astype(np.float64), channels, 0).reshape(rows.shape) - rows
        return bool((np.linalg.norm(errors, axis=1) > _MAX_LOST * np.linalg.norm(rows, axis=1)).any())

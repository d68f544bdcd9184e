"""A model in a wider dtype, as it would compute if it rounded less: one of 16-bit floats in float32, or in float64.

Weights, constants, Casts and the interface become wider; the wider dtype represents every value of the narrow ones
exactly, so only rounding changes. Values that overflow 16 bits do not overflow here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from onnxopt.errors import OnnxoptError
from onnxopt.graph import read
from onnxopt.graph.shapes.infer import InferShapesPass

_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})
_WEIGHTS = "weights"  # the file that they lie in
_INLINE = 1024  # bytes; smaller tensors stay in the model file
_PAGE = 4096  # so that ORT can map a tensor


@dataclasses.dataclass(frozen=True)
class Wider:
    """The narrow dtypes, and the one that takes their place. name: of the narrow ones."""

    narrow: frozenset[ir.DataType]
    wide: ir.DataType
    name: str


IN_FLOAT32 = Wider(frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16}), ir.DataType.FLOAT, "16-bit floats")
IN_FLOAT64 = Wider(IN_FLOAT32.narrow | {ir.DataType.FLOAT}, ir.DataType.DOUBLE, "floats")


class NotWidened(OnnxoptError):
    """A model cannot be written in a wider dtype here; the message says why."""


def widen(
    model: Path,
    folder: Path,
    *,
    rounded: bool = False,
    to: Wider = IN_FLOAT32,
    adapted: Callable[[ir.Model], Callable[[], None]] | None = None,
) -> Path:
    """Write the model file's wider form into the empty `folder`; returns its path. NotWidened where that fails.

    rounded: with every node's result rounded to the narrow dtype that it had, as the model's dtypes say. adapted:
    called with the model as it is, its dtypes and shapes inferred; what it returns is called when dtypes were changed.
    """
    source = read.load(model).model
    with _failing():
        if rounded or adapted is not None:  # files need not say the dtypes of what nodes compute
            TopologicalSortPass()(source)
            InferShapesPass()(source)
        adapt = adapted(source) if adapted is not None else None
    return write_widened(source, Weights(folder, to), rounded=rounded, adapt=adapt)


def write_widened(
    model: ir.Model, weights: Weights, *, rounded: bool = False, adapt: Callable[[], None] | None = None
) -> Path:
    """Write the wider form of a model that knows its dtypes, beside its weights; returns its path.

    The model is changed. weights: also of other models that share some with it. NotWidened where that fails. rounded:
    as for `widen`. adapt: called when dtypes were changed.
    """
    to = weights.to
    factor = to.wide.itemsize / min(dtype.itemsize for dtype in to.narrow)
    needed = int(sum(t.nbytes * (factor if t.dtype in to.narrow else 1) for t in _tensors(model)))
    free = shutil.disk_usage(weights.folder).free
    if needed > free:
        name = to.wide.numpy().name
        raise NotWidened(f"its weights take {needed / 1e9:.1f} GB in {name}, {free / 1e9:.1f} GB are free")
    with _failing():
        _widen(model, weights, rounded)
        if adapt is not None:
            adapt()
        with read.quiet():
            proto = ir.to_proto(model)
    read.restore_types(model, proto)
    path = weights.folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise NotWidened(read.first_line(error)) from error


class Weights:
    """Weights in a wider dtype, each written once, in one file in `folder`."""

    def __init__(self, folder: Path, to: Wider) -> None:
        self.folder, self.to = folder, to
        self._written: dict[int, tuple[ir.TensorProtocol, ir.TensorProtocol]] = {}

    def of(self, tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
        """The tensor by a name, in the wider dtype if it was of a narrow one."""
        if id(tensor) not in self._written:
            self._written[id(tensor)] = (tensor, self._new(tensor))
        wide = self._written[id(tensor)][1]
        wide.name = name
        return wide

    def _new(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Large ones have their bytes at the end of the file."""
        to = self.to
        dtype = to.wide if tensor.dtype in to.narrow else tensor.dtype
        array = tensor.numpy() if dtype == tensor.dtype else tensor.numpy().astype(to.wide.numpy())
        if array.nbytes <= _INLINE or dtype.bitwidth < 8:
            return ir.tensor(array, dtype=dtype, name=tensor.name)
        with open(self.folder / _WEIGHTS, "ab") as file:
            file.write(bytes(-file.tell() % _PAGE))
            offset = file.tell()
            array.tofile(file)
        shape = ir.Shape(array.shape)
        return ir.ExternalTensor(_WEIGHTS, offset, array.nbytes, dtype, shape=shape, name="", base_dir=self.folder)


def widened(array: np.ndarray) -> np.ndarray:
    """The array in float32 where it is of a 16-bit float, else as it is."""
    is_narrow = array.dtype == np.float16 or str(array.dtype) == "bfloat16"
    return array.astype(np.float32) if is_narrow else array


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    return [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]


def _widen(model: ir.Model, weights: Weights, rounded: bool) -> None:
    to = weights.to
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING:
                value.const_value = weights.of(value.const_value, value.name)
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            _widen_type(value, to)
    nodes = [*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f.all_nodes())]
    for node in nodes:
        for value in node.outputs:
            narrow = value.dtype
            _widen_type(value, to)
            if rounded and narrow in to.narrow and narrow is not None:
                _round(value, narrow, to.wide)
        for attribute in tuple(node.attributes.values()):
            changed = _widen_attribute(attribute, to)
            if changed is not None:
                node.attributes[attribute.name] = changed


def _round(value: ir.Value, dtype: ir.DataType, wide: ir.DataType) -> None:
    """Round a node's result to `dtype`; its consumers, and graph outputs, take the rounded value."""
    producer = value.producer()
    assert producer is not None
    there = ir.node("Cast", inputs=[value], attributes={"to": dtype.value})
    back = ir.node("Cast", inputs=there.outputs, attributes={"to": wide.value})
    name, result = value.name, back.outputs[0]
    result.type, result.shape = value.type, value.shape
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    there.replace_input_with(0, value)
    value.name, there.outputs[0].name, result.name = f"{name}_exact", f"{name}_rounded", name
    producer.graph.insert_after(producer, [there, back])  # type: ignore[union-attr]


def _widen_type(value: ir.Value, to: Wider) -> None:
    if isinstance(value.type, ir.TensorType):
        if value.dtype in to.narrow:
            value.type = ir.TensorType(to.wide)  # types may be shared
    elif value.type is not None and value.type.dtype in to.narrow:
        raise NotImplementedError(f"{value.name} is a {type(value.type).__name__} of {to.name}")


def _widen_attribute(attribute: ir.Attr, to: Wider) -> ir.Attr | None:
    """The attribute in the wider dtype; None where it is the same there."""
    if attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype in to.narrow or isinstance(tensor, ir.ExternalTensor):
            array = tensor.numpy().astype(to.wide.numpy()) if tensor.dtype in to.narrow else tensor.numpy()
            return ir.AttrTensor(attribute.name, ir.tensor(array, name=tensor.name))
    is_dtype = attribute.name in _DTYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT
    if is_dtype and attribute.as_int() in to.narrow:
        return ir.AttrInt64(attribute.name, to.wide.value)
    return None

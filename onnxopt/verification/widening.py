"""A model of 16-bit floats in float32, as it would compute if it did not round to 16 bits.

Weights, constants, Casts and the interface become float32 wherever they are float16 or bfloat16; float32 represents
every value of these exactly, so only rounding changes. Values that overflow 16 bits do not overflow here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from onnxopt.errors import OnnxoptError
from onnxopt.graph import read
from onnxopt.graph.shapes.infer import InferShapesPass

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})
_FLOAT = ir.DataType.FLOAT
_WEIGHTS = "weights"  # the file that they lie in
_INLINE = 1024  # bytes; smaller tensors stay in the model file
_PAGE = 4096  # so that ORT can map a tensor


class NotWidened(OnnxoptError):
    """A model cannot be written in float32 here; the message says why."""


def widen(model: Path, folder: Path, *, rounded: bool = False) -> Path:
    """Write the model file's float32 form into the empty `folder`; returns its path. NotWidened where that fails.

    rounded: with every node's result rounded to the 16-bit dtype that it had, as the model's dtypes say.
    """
    source = read.load(model).model
    needed = sum(t.nbytes * (2 if t.dtype in _NARROW else 1) for t in _tensors(source))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise NotWidened(f"its weights take {needed / 1e9:.1f} GB in float32, {free / 1e9:.1f} GB are free")
    try:
        if rounded:  # files need not say the dtypes of what nodes compute
            TopologicalSortPass()(source)
            InferShapesPass()(source)
        _widen(source, folder, rounded)
        with read.quiet():
            proto = ir.to_proto(source)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise NotWidened(read.first_line(error)) from error
    read.restore_types(source, proto)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def widened(array: np.ndarray) -> np.ndarray:
    """The array in float32 where it is of a 16-bit float, else as it is."""
    is_narrow = array.dtype == np.float16 or str(array.dtype) == "bfloat16"
    return array.astype(np.float32) if is_narrow else array


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    return [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]


def _widen(model: ir.Model, folder: Path, rounded: bool) -> None:
    with open(folder / _WEIGHTS, "wb") as file:
        for graph in model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING:
                    value.const_value = _written(value.const_value, file, folder)
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            _widen_type(value)
    nodes = [*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f.all_nodes())]
    for node in nodes:
        for value in node.outputs:
            narrow = value.dtype
            _widen_type(value)
            if rounded and narrow in _NARROW and narrow is not None:
                _round(value, narrow)
        for attribute in tuple(node.attributes.values()):
            changed = _widen_attribute(attribute)
            if changed is not None:
                node.attributes[attribute.name] = changed


def _round(value: ir.Value, dtype: ir.DataType) -> None:
    """Round a node's result to `dtype`; its consumers, and graph outputs, take the rounded value."""
    producer = value.producer()
    assert producer is not None
    there = ir.node("Cast", inputs=[value], attributes={"to": dtype.value})
    back = ir.node("Cast", inputs=there.outputs, attributes={"to": _FLOAT.value})
    name, result = value.name, back.outputs[0]
    result.type, result.shape = value.type, value.shape
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    there.replace_input_with(0, value)
    value.name, there.outputs[0].name, result.name = f"{name}_exact", f"{name}_rounded", name
    producer.graph.insert_after(producer, [there, back])  # type: ignore[union-attr]


def _written(tensor: ir.TensorProtocol, file: BinaryIO, folder: Path) -> ir.TensorProtocol:
    """The tensor, in float32 if it was of 16-bit floats; its bytes at the end of the file where there are many."""
    array = tensor.numpy() if tensor.dtype not in _NARROW else tensor.numpy().astype(np.float32)
    dtype = _FLOAT if tensor.dtype in _NARROW else tensor.dtype
    if array.nbytes <= _INLINE or dtype.bitwidth < 8:
        return ir.tensor(array, dtype=dtype, name=tensor.name)
    file.seek(-file.tell() % _PAGE, 1)
    offset = file.tell()
    array.tofile(file)
    shape = ir.Shape(array.shape)
    return ir.ExternalTensor(
        _WEIGHTS, offset, array.nbytes, dtype, shape=shape, name=tensor.name or "", base_dir=folder
    )


def _widen_type(value: ir.Value) -> None:
    if isinstance(value.type, ir.TensorType):
        if value.dtype in _NARROW:
            value.dtype = _FLOAT
    elif value.type is not None and value.type.dtype in _NARROW:
        raise NotImplementedError(f"{value.name} is a {type(value.type).__name__} of 16-bit floats")


def _widen_attribute(attribute: ir.Attr) -> ir.Attr | None:
    """The attribute in float32; None where it is the same there."""
    if attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype in _NARROW or isinstance(tensor, ir.ExternalTensor):
            return ir.AttrTensor(attribute.name, ir.tensor(widened(tensor.numpy()), name=tensor.name))
    if attribute.name in _DTYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.as_int() in _NARROW:
        return ir.AttrInt64(attribute.name, _FLOAT.value)
    return None

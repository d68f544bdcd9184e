"""Bounds on what a model file may ask for, checked before anything is opened or expanded.

A file of a few hundred bytes can ask for terabytes: a sparse tensor of 2^40 elements, or functions that each call
the next one twice, 40 deep. Runtimes would run out of memory on them, so these are errors here, with the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxopt.errors import ModelError
from onnxopt.graph import external_data

MAX_NODES = 250_000  # of a model whose functions are inlined, or as many times those that the file has:
_GROWTH = 16
DEEPEST_CALLS = 64  # functions that call functions
_Key = tuple[str, str, str]  # domain, name and overload of a function
_NOT_LIMITED = frozenset({onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED})
# The typed field of each dtype that has one element for each number; dtypes below 8 bits and complex ones pack theirs.
_FIELDS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float_data", onnx.TensorProto.DOUBLE: "double_data",
    onnx.TensorProto.INT64: "int64_data", onnx.TensorProto.INT32: "int32_data",
    onnx.TensorProto.INT16: "int32_data", onnx.TensorProto.INT8: "int32_data",
    onnx.TensorProto.UINT64: "uint64_data", onnx.TensorProto.UINT32: "uint64_data",
    onnx.TensorProto.UINT16: "int32_data", onnx.TensorProto.UINT8: "int32_data",
    onnx.TensorProto.BOOL: "int32_data", onnx.TensorProto.STRING: "string_data",
    onnx.TensorProto.FLOAT16: "int32_data", onnx.TensorProto.BFLOAT16: "int32_data",
}  # fmt: skip


def check_functions(path: Path, proto: onnx.ModelProto) -> None:
    """ModelError where functions call each other in a circle, too deep, or inline to too many nodes."""
    functions = {(_domain(f.domain), f.name, f.overload): f for f in proto.functions}
    if not functions:
        return
    inlined: dict[_Key, int] = {}

    def count(nodes: Iterable[onnx.NodeProto], callers: tuple[_Key, ...]) -> int:
        total = 0
        for node in external_data.nested_nodes(nodes):
            key = (_domain(node.domain), node.op_type, node.overload)
            if key not in functions:
                total += 1
                continue
            if key in callers:
                raise ModelError(f"{path}: function {_text(key)} calls itself, directly or through others")
            if len(callers) >= DEEPEST_CALLS:
                raise ModelError(f"{path}: functions call each other more than {DEEPEST_CALLS} deep, at {_text(key)}")
            if key not in inlined:
                inlined[key] = count(functions[key].node, (*callers, key))
            total += inlined[key]
        return total

    total = sum(count(function.node, (key,)) for key, function in functions.items() if key not in inlined)
    total = max(total, count(proto.graph.node, ()))
    bodies = [proto.graph.node, *(function.node for function in functions.values())]
    stored = sum(1 for nodes in bodies for _ in external_data.nested_nodes(nodes))
    limit = max(MAX_NODES, _GROWTH * stored)
    if total > limit:
        raise ModelError(f"{path}: its functions inline to {total:,} nodes; at most {limit:,} are accepted")


def check_tensors(path: Path, proto: onnx.ModelProto) -> None:
    """ModelError naming a tensor inside the file that has not the data that its shape needs.

    Tensors in other files are checked where those files are (external_data.resolve).
    """
    for tensor in external_data.tensors_of(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        where = f"{path}: tensor '{tensor.name}'"
        if any(dim < 0 for dim in tensor.dims):
            raise ModelError(f"{where}: has a negative dim: {list(tensor.dims)}")
        try:
            dtype = ir.DataType(tensor.data_type)
        except ValueError:
            raise ModelError(f"{where}: data type {tensor.data_type} is not one of ONNX") from None
        elements = math.prod(tensor.dims)
        if tensor.HasField("raw_data") and tensor.data_type not in _NOT_LIMITED:
            needed, stored, unit = (elements * dtype.bitwidth + 7) // 8, len(tensor.raw_data), "bytes"
        elif tensor.data_type in _FIELDS:
            needed, stored, unit = elements, len(getattr(tensor, _FIELDS[tensor.data_type])), "elements"
        else:
            continue
        if needed != stored:
            kind = dtype.name.lower()
            raise ModelError(f"{where}: {kind}{list(tensor.dims)} needs {needed} {unit}, {stored} {unit} are stored")


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _text(key: _Key) -> str:
    return f"{key[0]}.{key[1]}" if key[0] else key[1]

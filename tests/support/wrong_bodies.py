"""Functions whose bodies are wrong, so that only a kernel of the library gives the right results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

_TENSOR_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}


def with_wrong_bodies(model: onnx.ModelProto, names: Collection[str] = ()) -> onnx.ModelProto:
    """A copy whose functions (of these names; default all) end in NaN, or in what a Cast of NaN gives other dtypes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for function in copy.functions:
        if not names or function.name in names:
            _poison(function)
    return copy


def failing_nodes(x: str, outputs: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Nodes of a function with operand x: outputs of these dtypes and of unknown shapes. They fail if they run."""
    nodes = [
        helper.make_node("Cast", [x], ["integers"], to=TensorProto.INT64),
        helper.make_node("Cast", [x], ["flags"], to=TensorProto.BOOL),
        helper.make_node("Constant", [], ["all"], value_ints=[-1]),
        helper.make_node("Reshape", ["flags", "all"], ["which"]),
        helper.make_node("Compress", ["integers", "which"], ["no_shape"]),  # of a length that nobody knows
    ]
    for name, dtype in outputs.items():
        nodes.append(helper.make_node("Cast", [x], [f"{name}_value"], to=tensor_type(dtype)))
        nodes.append(helper.make_node("Reshape", [f"{name}_value", "no_shape"], [name]))
    return nodes


def read_by_casts(operands: Sequence[str]) -> list[onnx.NodeProto]:
    """Nodes that read each operand: ONNX Runtime takes one that a body does not read for one of a few dtypes."""
    return [helper.make_node("Cast", [name], [f"{name}_read"], to=TensorProto.FLOAT) for name in operands]


def tensor_type(dtype: str) -> int:
    """The TensorProto data type of one of onnxopt's dtype names."""
    return getattr(TensorProto, _TENSOR_NAMES.get(dtype, dtype.upper()))


def _poison(function: onnx.FunctionProto) -> None:
    right = {name: f"{name}_right" for name in function.output}
    for node in function.node:
        for names in (node.input, node.output):
            names[:] = [right.get(name, name) for name in names]
    function.node.append(helper.make_node("Constant", [], ["poison"], value_float=float("nan")))
    for name, before in right.items():
        function.node.extend([
            helper.make_node("Cast", [before], [f"{name}_float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_float", "poison"], [f"{name}_wrong"]),
            helper.make_node("CastLike", [f"{name}_wrong", before], [name]),
        ])  # fmt: skip

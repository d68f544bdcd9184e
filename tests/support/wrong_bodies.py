"""Models whose functions give wrong results of the right dtypes and shapes: only a kernel gives the right ones."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto, helper


def with_wrong_bodies(model: onnx.ModelProto, names: Collection[str] = ()) -> onnx.ModelProto:
    """A copy whose functions (of these names; default all) end in NaN, or in what a Cast of NaN gives other dtypes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for function in copy.functions:
        if not names or function.name in names:
            _poison(function)
    return copy


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

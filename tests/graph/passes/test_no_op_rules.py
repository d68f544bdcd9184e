"""The rewrite rules of normalize: where each applies, why it refuses, and that constants are compared exactly."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.passes.no_op_rules import (
    ComputedReshape,
    KnownCastLike,
    LosslessCast,
    NeutralOperand,
    NoPads,
    SameShape,
    no_op_rules,
)
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, value


def _value(name: str, shape: list[int | str | None] | None, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=None if shape is None else ir.Shape(shape))


def _constant(array: np.ndarray) -> ir.Value:
    return ir.Value(name="c", const_value=ir.tensor(array, name="c"))


def _result(op_type: str, x: ir.Value, shape: list[int | str | None] | None, *more: ir.Value) -> ir.Value:
    result = ir.node(op_type, inputs=[x, *more]).outputs[0]
    result.shape = None if shape is None else ir.Shape(shape)
    return result


def _rewritten(op_type: str, x: ir.Value, c: ir.Value, opset: int = 20) -> list[str]:
    node = ir.node(op_type, inputs=[x, c])
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[c], opset_imports={"": opset}, name="g")
    model = ir.Model(graph, ir_version=9)
    no_op_rules()(model)
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(("op_type", "neutral"), [("Mul", 1.0), ("Div", 1.0), ("Sub", 0.0)])
def test_neutral_operand_goes(op_type: str, neutral: float) -> None:
    assert _rewritten(op_type, _value("x", ["N"]), _constant(np.float32(neutral))) == ["Identity"]


@pytest.mark.parametrize(
    ("op_type", "constant", "shape", "reason"),
    [
        ("Mul", np.float32(1.000001), ["N"], "the constant `c` is not 1"),
        ("Mul", np.ones(2, np.float32), ["N"], "not a constant of one element"),
        ("Mul", np.ones((1, 1), np.float32), ["N"], "may add dims"),
        ("Mul", np.ones(1, np.float32), None, "may add dims"),
        ("Sub", np.float32(1e-9), ["N"], "the constant `c` is not 0"),
        ("Add", np.float32(0), ["N"], "-0.0"),
    ],
)
def test_neutral_operand_refuses(op_type: str, constant: np.ndarray, shape: list | None, reason: str) -> None:
    rule = NeutralOperand(op_type, 1 if op_type == "Mul" else 0, integers=op_type == "Add")
    x, c = _value("x", shape), _constant(np.asarray(constant))
    assert reason in rule.check(None, x=x, c=c).reason
    assert "Identity" not in _rewritten(op_type, x, c)  # equal_forms.py writes Add for Sub


def test_neutral_operand_refuses_a_computed_one() -> None:
    result = NeutralOperand("Mul", 1).check(None, x=_value("x", ["N"]), c=_value("c", []))
    assert "not a constant" in result.reason


@pytest.mark.parametrize("op_type", ["Reshape", "Expand", "Slice", "Flatten", "Tile"])
def test_same_shape_goes(op_type: str) -> None:
    x = _value("x", ["N", 3])
    assert SameShape(op_type).check(None, x=x, y=_result(op_type, x, ["N", 3]))


@pytest.mark.parametrize(
    ("of_x", "of_y", "reason"),
    [
        (["N", 3], ["N", 4], "another"),
        (["N", 3], ["M", 3], "another"),
        (["N", 3], None, "not known"),
        (None, ["N", 3], "not known"),
        ([None, 3], [None, 3], "no name"),
    ],
)
def test_same_shape_refuses(of_x: list | None, of_y: list | None, reason: str) -> None:
    x = _value("x", of_x)
    assert reason in SameShape("Reshape").check(None, x=x, y=_result("Reshape", x, of_y)).reason


def test_same_shape_refuses_a_reversing_slice() -> None:
    x, steps = _value("x", [4]), _constant(np.int64([-1]))
    ends = [_constant(np.int64([0]))] * 3
    assert "reverse" in SameShape("Slice").check(None, x=x, y=_result("Slice", x, [4], *ends, steps)).reason
    computed = _value("steps", [1], ir.DataType.INT64)
    assert "reverse" in SameShape("Slice").check(None, x=x, y=_result("Slice", x, [4], *ends, computed)).reason


def test_pads_of_nothing_go() -> None:
    x = _value("x", ["N", 3])
    assert NoPads().check(None, x=x, pads=_constant(np.zeros(4, np.int64)))
    assert "other than 0" in NoPads().check(None, x=x, pads=_constant(np.array([0, 1, 0, -1]))).reason
    assert "other than 0" in NoPads().check(None, x=x, pads=_value("pads", [4], ir.DataType.INT64)).reason
    assert _rewritten("Pad", x, _constant(np.zeros(4, np.int64))) == ["Identity"]


def _casts(source: ir.DataType, wide: ir.DataType, to: ir.DataType) -> object:
    x = _value("x", ["N"], source)
    return LosslessCast().check(None, x=x, wide=ir.AttrInt64("wide", wide.value), to=ir.AttrInt64("to", to.value))


def test_lossless_casts_go() -> None:
    assert _casts(ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.FLOAT16)
    assert _casts(ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32)
    assert _casts(ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT)


@pytest.mark.parametrize(
    ("source", "wide", "to", "reason"),
    [
        (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.FLOAT, "may round"),
        (ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16, "may round"),
        (ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.FLOAT16, "may round"),
        (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.STRING, "digits"),
    ],
)
def test_rounding_casts_stay(source: ir.DataType, wide: ir.DataType, to: ir.DataType, reason: str) -> None:
    assert reason in _casts(source, wide, to).reason


@pytest.mark.parametrize("dims", [[2, 3], ["N", 3], [None, 4, 5]])
def test_computed_reshape_becomes_constant(dims: list) -> None:
    x, shape = _value("x", ["N"]), _value("s", [2], ir.DataType.INT64)
    assert ComputedReshape().check(None, x=x, shape=shape, y=_result("Reshape", x, dims, shape))


def test_computed_reshape_copies_the_dims_that_stay_in_place() -> None:
    x, shape = _value("x", ["N", "M", 6]), _value("s", [4], ir.DataType.INT64)
    y = _result("Reshape", x, ["N", "M", "K", 3], shape)
    assert ComputedReshape().check(None, x=x, shape=shape, y=y)
    assert _rewritten_shape(["N", "M", "K", 3]) == [0, 0, -1, 3]
    assert _rewritten_shape(["M", 2]) == [-1, 2]


def _rewritten_shape(dims: list) -> list[int]:
    x, shape = _value("x", ["N", "M", 6]), _value("s", [len(dims)], ir.DataType.INT64)
    node = ir.node("Reshape", inputs=[x, shape])
    node.outputs[0].name, node.outputs[0].shape = "y", ir.Shape(dims)
    graph = ir.Graph([x, shape], node.outputs, nodes=[node], opset_imports={"": 20}, name="g")
    no_op_rules()(ir.Model(graph, ir_version=9))
    constant = next(n for n in graph if n.op_type == "Reshape").inputs[1]
    assert constant is not None
    tensor = ir.convenience.get_const_tensor(constant)
    assert tensor is not None
    return tensor.numpy().tolist()


@pytest.mark.parametrize(
    ("dims", "reason"), [(["K", "M"], "several dims"), (None, "several dims"), ([0, "N"], "dim of 0")]
)
def test_computed_reshape_stays(dims: list | None, reason: str) -> None:
    x, shape = _value("x", ["N"]), _value("s", [2], ir.DataType.INT64)
    assert reason in ComputedReshape().check(None, x=x, shape=shape, y=_result("Reshape", x, dims, shape)).reason
    assert "already" in ComputedReshape().check(None, x=x, shape=_constant(np.int64([2])), y=x).reason


def test_merged_reshapes_leave_other_constants() -> None:
    """The new shape has a name of its own, where a constant has the one that onnxscript's rule gives it."""
    shapes = "int64[2] flat = {4, 3}, int64[3] back = {2, 2, 3}, int64[1] other = {12}"
    body = "a = Reshape(x, flat) y = Reshape(a, back) z = Reshape(x, other)"
    model = graph("float[2, 6] x", "float[] y, float[] z", body, constants=shapes)
    infer(model).write()
    taken = value(model, "other")
    del model.graph.initializers["other"]
    taken.name = "y/shape"
    model.graph.register_initializer(taken)
    no_op_rules()(model)
    read = [node.inputs[1] for node in model.graph if node.op_type == "Reshape"]
    assert len(read) == 2
    assert all(v is not None and model.graph.initializers[str(v.name)] is v for v in read)


def test_cast_like_becomes_a_cast_to_the_dtype() -> None:
    like = _value("c", [2], ir.DataType.FLOAT16)
    node = ir.node("CastLike", inputs=[_value("x", ["N"]), like])
    node.outputs[0].name = "y"
    graph = ir.Graph(list(node.inputs), node.outputs, nodes=[node], opset_imports={"": 20}, name="g")
    no_op_rules()(ir.Model(graph, ir_version=9))
    (cast,) = graph
    assert cast.op_type == "Cast"
    assert cast.attributes["to"].as_int() == ir.DataType.FLOAT16


def test_cast_like_stays_where_the_dtype_is_not_known() -> None:
    like = ir.Value(name="like")
    assert "not known" in KnownCastLike().check(None, x=_value("x", ["N"]), like=like).reason

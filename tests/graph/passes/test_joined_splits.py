"""Concats that join the parts of a Split again: where they read the Split's input, and where they stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxopt.graph import normalize
from tests.support.graphs import graph, hold, run

_HEAD = '<ir_version: 9, opset_import: ["" : 20]> g (float[2, 12, 3] x, float[2, 4, 3] z) => '


_HALVES = "a, b = Split<axis = 1, num_outputs = 2>(x)"


def normalized(outputs: str, body: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    source = onnx.parser.parse_model(f"{_HEAD}({outputs}) {{ {body} }}")
    model = ir.from_proto(source)
    normalize.normalize(model)
    return source, ir.to_proto(model)


def assert_same(source: onnx.ModelProto, model: onnx.ModelProto) -> None:
    random = np.random.default_rng(1)
    feeds = {"x": random.standard_normal((2, 12, 3)), "z": random.standard_normal((2, 4, 3))}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    found, expected = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        for m in (model, source)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("outputs", "body", "left"),
    [
        # one part is read elsewhere, in either place
        ("float[2, 16, 3] y, float[2, 6, 3] w", f"{_HALVES}  y = Concat<axis = 1>(a, b, z)"
         "  w = Neg(b)", ["Slice", "Concat", "Neg"]),
        ("float[2, 16, 3] y, float[2, 6, 3] w", "a, b = Split<axis = -2, num_outputs = 2>(x)"
         "  y = Concat<axis = 1>(z, a, b)  w = Neg(a)", ["Slice", "Concat", "Neg"]),
        # none is, all are
        ("float[2, 16, 3] y", "a, b, c = Split<axis = 1, num_outputs = 3>(x)  y = Concat<axis = 1>(a, b, c, z)",
         ["Concat"]),
        ("float[2, 12, 3] y", f"{_HALVES}  c = Concat<axis = 1>(a, b)  y = Neg(c)", ["Neg"]),
        ("float[2, 16, 3] y, float[2, 6, 3] v, float[2, 6, 3] w", f"{_HALVES}"
         "  y = Concat<axis = 1>(a, b, z)  v = Exp(a)  w = Neg(b)", ["Split", "Concat", "Exp", "Neg"]),
        # two Splits, and the same one twice
        ("float[2, 16, 3] y", f"{_HALVES}  c, d = Split<axis = 1, num_outputs = 2>(z)"
         "  y = Concat<axis = 1>(c, d, a, b)", ["Concat"]),
        ("float[2, 24, 3] y", f"{_HALVES}  y = Concat<axis = 1>(a, b, a, b)", ["Concat"]),
    ],
)  # fmt: skip
def test_joined(outputs: str, body: str, left: list[str]) -> None:
    source, model = normalized(outputs, body)
    assert sorted(n.op_type for n in model.graph.node) == sorted(left)
    assert_same(source, model)


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("float[2, 12, 3] y", f"{_HALVES}  y = Concat<axis = 1>(b, a)"),
        ("float[2, 6, 6] y", f"{_HALVES}  y = Concat<axis = 2>(a, b)"),
        ("float[2, 16, 3] y", f"{_HALVES}  y = Concat<axis = 1>(a, z, b)"),
    ],
)
def test_not_joined(outputs: str, body: str) -> None:
    source, model = normalized(outputs, body)
    assert sorted(n.op_type for n in model.graph.node) == ["Concat", "Split"]
    assert_same(source, model)


def test_one_part_is_a_slice() -> None:
    source, model = normalized("float[2, 10, 3] y", f"{_HALVES}  y = Concat<axis = 1>(a, z)")
    assert sorted(n.op_type for n in model.graph.node) == ["Concat", "Slice"]
    assert_same(source, model)


def test_outputs_keep_their_names() -> None:
    """The Concat's result is an output of the graph, as is a part of the Split."""
    body = f"{_HALVES}  y = Concat<axis = 1>(a, b)"
    source, model = normalized("float[2, 12, 3] y, float[2, 6, 3] b", body)
    assert [o.name for o in model.graph.output] == ["y", "b"]
    assert_same(source, model)


_BOUNDS = """int64[1] o = {0}, int64[1] n4 = {4}, int64[1] n6 = {6}, int64[1] n8 = {8}, int64[1] end = {12},
    int64[1] l = {-1}, int64[1] far = {9223372036854775807}, int64[1] back = {-6}, int64[1] two = {2},
    int64[1] one = {1}"""
_SLICED = """a = Slice(t, o, n6, axis) b = Slice(t, n6, far, axis, one)"""


@pytest.mark.parametrize(
    ("shape", "axis", "body", "left"),
    [
        ("N, 12, 5, 3", 1, f"{_SLICED} c = Neg(b) y = Concat<axis = 1>(c, a)", ["Tanh", "Split", "Neg", "Concat"]),
        ("N, 12, H, W", -3, "a = Slice(t, o, back, axis) b = Slice(t, back, end, axis) y = Mul(a, b)",
         ["Tanh", "Split", "Mul"]),
        ("N, 12", 1, "a = Slice(t, o, n4, axis) b = Slice(t, n4, n8, axis) c = Slice(t, n8, far, axis) d = Mul(a, b) "
         "y = Mul(d, c)", ["Tanh", "Split", "Mul", "Mul"]),
        ("N, S, 12", -1, f"{_SLICED} c = Slice(t, o, n6, l) d = Sigmoid(b) e = Mul(a, d) y = Add(c, e)",
         ["Tanh", "Split", "Sigmoid", "Mul", "Add"]),
        ("N, S, 12", 2, f"{_SLICED} c = Concat<axis = 2>(a, b) y = Neg(c)", ["Tanh", "Neg"]),
        # heads, unequal parts, a gap, an overlap, every other one, one part as the output
        ("N, 4, S, 12", 3, "a = Slice(t, o, n4, axis) b = Slice(t, n4, n8, axis) c = Slice(t, n8, far, axis) "
         "d = Mul(a, b) y = Add(c, d)", ["Tanh", "Split", "Mul", "Add"]),
        ("N, 4, S, 12", 3, f"{_SLICED} y = Mul(a, b)", ["Tanh", "Slice", "Slice", "Mul"]),
        ("N, 12", 1, "a = Slice(t, o, n4, axis) b = Slice(t, n4, far, axis) c = Neg(a) y = Concat<axis = 1>(b, c)",
         ["Tanh", "Slice", "Slice", "Neg", "Concat"]),
        ("N, 12", 1, "a = Slice(t, o, n4, axis) b = Slice(t, n8, far, axis) y = Mul(a, b)",
         ["Tanh", "Slice", "Slice", "Mul"]),
        ("N, 12", 1, "a = Slice(t, o, n8, axis) b = Slice(t, n4, far, axis) y = Mul(a, b)",
         ["Tanh", "Slice", "Slice", "Mul"]),
        ("N, 12", 1, "a = Slice(t, o, far, axis, two) b = Slice(t, one, far, axis, two) y = Mul(a, b)",
         ["Tanh", "Slice", "Slice", "Mul"]),
        ("N, 12", 1, "a = Slice(t, o, n6, axis) z = Slice(t, n6, far, axis) y = Mul(a, z)",
         ["Tanh", "Slice", "Slice", "Mul"]),
    ],
)  # fmt: skip
def test_slices_into_equal_parts(shape: str, axis: int, body: str, left: list[str]) -> None:
    outputs = "float[] y, float[N, 6] z" if " z = " in body else "float[] y"
    constants = f"{_BOUNDS}, int64[1] axis = {{{axis}}}"
    source = graph(f"float[{shape}] x", outputs, f"t = Tanh(x) {body}", constants=constants)
    model = normalize.normalize(source.clone()).model
    assert [node.op_type for node in model.graph] == left
    x = np.random.default_rng(0).standard_normal([int(d) if d.isdigit() else 2 for d in shape.split(", ")])
    for wanted, result in zip(*(run(m, {"x": x.astype(np.float32)}) for m in (source, model)), strict=True):
        np.testing.assert_array_equal(wanted, result)


def test_constants_of_other_operators_may_be_infinite() -> None:
    source = graph("float[N, 4] x, float[1] big", "float[] y", "t = Tanh(x) y = Min(t, big)")
    hold(source, {"big": np.full(1, np.inf)}, np.float32)
    assert [node.op_type for node in normalize.normalize(source).model.graph] == ["Tanh", "Min"]

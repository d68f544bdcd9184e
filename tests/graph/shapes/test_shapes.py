"""Shapes: inferred anew, wrong declarations ignored, and what counts as the same shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.passes.opset import convert_opset
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.graph.shapes.value_dims import uniform
from tests.support.graphs import graph, node, value


def test_declared_intermediate_shapes_are_not_read_and_come_back() -> None:
    model = graph("float[4, 8] x", "float[4, 8] y", "a = Tanh(x)  y = Exp(a)")
    wrong = ir.Shape([3, 3])
    value(model, "a").shape = wrong
    shapes = shape_inference.infer(model)
    assert shapes.dims(value(model, "a")) == (4, 8)
    assert value(model, "a").shape is wrong


def test_wrong_declared_output_is_not_read() -> None:
    model = graph("float[4, 8] x", "float[5] y", "y = Exp(x)")
    assert shape_inference.infer(model).dims(value(model, "y")) == (4, 8)
    assert value(model, "y").shape == (5,)


def test_dims_elements_and_bytes() -> None:
    model = graph(
        "float16[4, 8] a, float[N, 8] b, float s, string[2] t", "float16[4, 8] y", "y = Neg(a)",
        constants="int64[3] c = {1, 2, 3}",
    )  # fmt: skip
    shapes = shape_inference.infer(model)
    known = {
        n: (shapes.dims(v), shapes.elements(v), shapes.bytes(v)) for n in "absct" for v in [value(model, n)]
    }  # fmt: skip
    assert known == {
        "a": ((4, 8), 32, 64),
        "b": (("N", 8), None, None),
        "s": ((), 1, 4),
        "c": ((3,), 3, 24),
        "t": ((2,), 2, None),
    }
    assert shapes.dtype(value(model, "t")) is None
    assert shapes.dtype(value(model, "b")).name == "float32"


def test_unknown_rank_has_no_dims() -> None:
    model = graph("float[N, 4] x, int64[R] s", "float[] y", "y = Reshape(x, s)")
    shapes = shape_inference.infer(model)
    assert shapes.dims(value(model, "y")) is None
    assert shapes.elements(value(model, "y")) is None


def test_values_in_bodies_are_known() -> None:
    model = graph(
        "float[N, 4] x, bool b", "float[N, 4] y",
        "y = If (b) <then_branch = t () => (float[N, 4] p) { p = Tanh(x) }, "
        "else_branch = e () => (float[N, 4] q) { q = Exp(x) }>",
    )  # fmt: skip
    assert shape_inference.infer(model).dims(value(model, "p")) == ("N", 4)


@pytest.mark.parametrize(
    ("inputs", "body", "first", "second", "same"),
    [
        ("float[N, 8] x", "y = Tanh(x)", "x", "y", True),
        ("float[?, 8] x", "a = Tanh(x)  y = Exp(a)", "x", "y", True),  # followed upstream
        ("float[?, 8] x, float[8] c", "y = Add(x, c)", "x", "y", True),
        ("float[] x, float c", "y = Add(x, c)", "x", "y", True),  # rank unknown, and a scalar
        ("float[] x, float[1] c", "y = Add(x, c)", "x", "y", False),  # x may be of rank 0
        ("float[?, 8] x, float[?, 8] c", "y = Add(x, c)", "x", "y", False),
        ("float[N, 8] x, float[N, 8] c", "y = Add(x, c)", "x", "c", True),
        ("float[N, 8] x, float[M, 8] c", "y = Add(x, c)", "x", "c", False),
        ("float[8] x, float[4, 8] c", "y = Add(x, c)", "x", "y", False),
        ("float[8] x, float[4, 8] c", "y = Add(x, c)", "c", "y", True),
        ("float[1, 8] x, float[4, 1] c", "y = Add(x, c)", "x", "y", False),
        ("float[4, 8] x", "y = Transpose(x)", "x", "y", False),
        ("float[4, 8] x", "y = Softmax(x)", "x", "y", True),  # by their dims
    ],
)
def test_same(inputs: str, body: str, first: str, second: str, same: bool) -> None:
    model = graph(inputs, "float[] y", body)
    shapes = shape_inference.infer(model)
    assert shapes.same(value(model, first), value(model, second)) is same
    assert shapes.same(value(model, second), value(model, first)) is same


def test_root_of_a_long_chain_needs_no_recursion() -> None:
    body = "v0 = Tanh(x) " + " ".join(f"v{k} = Neg(v{k - 1})" for k in range(1, 1500)) + " y = Exp(v1499)"
    model = graph("float[?, 8] x", "float[] y", body)
    assert shape_inference.infer(model).root(node(model, "y").outputs[0]) is value(model, "x")


@pytest.mark.parametrize(
    ("elements", "number"),
    [([4.0, 4.0, 4.0], 4.0), ([4.0, 5.0], None), ([0.0, -0.0], None), ([], None), ([True, True], None)],
)
def test_uniform_reads_equal_elements(elements: list[float], number: float | None) -> None:
    tensor = ir.tensor(np.array(elements, bool if elements[:1] == [True] else np.float32))
    assert uniform(ir.Value(name="x", const_value=tensor)) == number


def test_sizes_below_0_end_nothing() -> None:
    """Damaged pads; onnx's inference of a Slice of such a size ends the process."""
    model = graph(
        "float[N, 4, 8] x", "float[] y", "p = Pad(x, pads) y = Slice(p, one, last, axis)", opset=12,
        constants="int64[6] pads = {0, 0, 0, 0, 0, -9223372036854775800}, int64[1] one = {1}, int64[1] last = {-1}, "
        "int64[1] axis = {2}",
    )  # fmt: skip
    assert shape_inference.infer(model).dims(value(model, "y"))[:2] == ("N", 4)  # type: ignore[index]
    assert convert_opset(model) == "opset 12 kept: `p` has a size below 0"

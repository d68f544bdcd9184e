"""What normalization makes of graphs whose symbolic shapes are inferred."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.shapes.test_symbolic_shapes import FOURS, TO_FOURS, normalized_graphs, operators_of, run


@pytest.mark.parametrize(
    ("over", "first", "gone"),
    [(1, True, True), (1, False, True), (2, True, False)],  # a product of longer rows may round differently
)
def test_an_expand_of_batches_goes_where_a_product_over_one_element_broadcasts(
    over: int, first: bool, gone: bool
) -> None:
    x, m = (f"B, {over}, S", f"1, 4, {over}") if first else (f"B, S, {over}", f"1, {over}, 4")
    rest, operands = ("four, over", "e, x") if first else ("over, four", "x, e")
    body = f"b = Shape<start = 0, end = 1>(x) s = Concat<axis = 0>(b, {rest}) e = Expand(m, s) y = MatMul({operands})"
    constants = f"int64[1] four = {{4}}, int64[1] over = {{{over}}}"
    before, after = normalized_graphs(f"float[{x}] x, float[{m}] m", "float[] y", body, constants)
    assert ("Expand" not in operators_of(after)) is gone
    random, sizes = np.random.default_rng(0), {"B": 3, "S": 5}
    feeds = {
        name: random.standard_normal([int(sizes.get(d, d)) for d in dims.split(", ")]).astype(np.float32)
        for name, dims in (("x", x), ("m", m))
    }
    np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])


def test_pads_in_another_order_are_joined_of_their_elements() -> None:
    """As a matrix, which is turned, they would be data for kernels; Pad reads them on the host."""
    body = f"n = Shape<start = 2>(x) {TO_FOURS} y = Pad(x, p)"
    before, after = normalized_graphs("float[N, 3, H] x", "float[] y", body, FOURS)
    assert not {"Reshape", "Transpose", "Slice"} & set(operators_of(after))
    for length in (1, 3, 4, 6):
        x = np.random.default_rng(length).standard_normal((2, 3, length)).astype(np.float32)
        np.testing.assert_array_equal(run(after, {"x": x})[0], run(before, {"x": x})[0])


def test_a_computed_shape_becomes_a_constant_with_zeros_for_the_operands_own_dims() -> None:
    constants = "int64[1] z = {0}, int64[1] o = {1}, int64[1] t = {2}, int64[2] h = {4, 2}"
    body = (
        "s = Shape(x)  b = Slice(s, z, o)  n = Slice(s, o, t)  c = Concat<axis=0>(b, n, h)  r = Reshape(x, c)  "
        "y = Transpose<perm=[0, 2, 1, 3]>(r)"
    )
    before, after = normalized_graphs("float[B, S, 8] x", "float[] y", body, constants)
    assert operators_of(after) == ["Reshape", "Transpose"]
    shape = next(iter(after.graph)).inputs[1]
    assert shape is not None
    assert shape.const_value is not None
    assert shape.const_value.numpy().tolist() == [0, 0, 4, 2]
    for size in ((1, 1, 8), (3, 5, 8), (2, 0, 8)):
        feeds = {"x": np.arange(np.prod(size), dtype=np.float32).reshape(size)}
        np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])


def test_a_shape_of_two_moved_dims_stays_computed() -> None:
    body = "s = Shape(x)  c = Gather(s, k)  y = Reshape(x, c)"
    _, after = normalized_graphs("float[B, S, 8] x", "float[] y", body, "int64[3] k = {1, 0, 2}")
    assert "Shape" in operators_of(after)


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        ("e = Expand(m, c)  y = Add(x, e)", True),
        ("e = Expand(m, c)  w = Where(e_b, e, f)  y = Mul(x, w)", True),  # through another that broadcasts
        ("e = Expand(m, c)  y = Softmax<axis=-1>(e)", False),  # would see another shape
        ("e = Expand(m, c)  y = Add(m, e)", False),  # nothing else gives the shape back
        ("y = Expand(m, c)", False),  # a result of the model
        ("e = Expand(m, c)  t = ReduceSum<keepdims=0>(e)  y = Add(x, t)", False),  # elements would be fewer
    ],
)  # fmt: skip
def test_an_expand_goes_where_its_readers_broadcast(body: str, gone: bool) -> None:
    full = f"c = Shape(x)  e_b = Greater(m, f)  {body}"
    before, after = normalized_graphs("float[B, S] x, float[1, S] m", "float[] y", full, "float f = {0.5}")
    assert ("Expand" not in operators_of(after)) is gone
    random = np.random.default_rng(0)
    for batch in (1, 3):
        feeds = {"x": random.standard_normal((batch, 4), np.float32), "m": random.standard_normal((1, 4), np.float32)}
        np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])


def test_what_is_computed_of_dims_twice_is_computed_once() -> None:
    body = (
        "s = Shape<start=0, end=1>(x)  t = Shape(w)  u = Slice(t, z, o)  a = Concat<axis=0>(s, k) "
        "b = Concat<axis=0>(u, k)  p = Expand(v, a)  q = Expand(v, b) "
        "i = Softmax<axis=-1>(p)  j = Softmax<axis=-1>(q)  y = Add(i, j)"
    )
    constants = "int64[1] z = {0}, int64[1] o = {1}, int64[1] k = {3}, float[1] v = {2.0}"
    before, after = normalized_graphs("float[N, 2] x, float[N, 5] w", "float[] y", body, constants)
    assert operators_of(after).count("Concat") == 1
    assert operators_of(after).count("Shape") == 1
    feeds = {"x": np.zeros((4, 2), np.float32), "w": np.zeros((4, 5), np.float32)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])

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

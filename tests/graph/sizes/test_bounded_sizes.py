"""Minima of sizes: which are one of the two wherever the graph runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from tests.support.graphs import graph, run

# As GPT-2 is exported: x [batch, sequence, 8] in rows, and back to [batch, Min(sequence, 16), 8].
ROWS = (
    "rows = Reshape (x, to_rows) s = Shape (x) b = Slice (s, i0, i1, i0) n = Slice (s, i1, i2, i0) "
    "least = Min (n, limit) dims = Concat <axis = 0> (b, least, i8) w = Neg (rows) y = Reshape (w, dims)"
)
CONSTANTS = (
    "int64[2] to_rows = {-1, 8}, int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}, int64[1] i8 = {8}, "
    "int64[1] limit = {16}"
)


def _normalized(inputs: str, body: str, constants: str = CONSTANTS, outputs: str = "float[p, q, r] y") -> ir.Model:
    return normalize.normalize(graph(inputs, outputs, body, constants=constants)).model


def test_a_minimum_that_a_reshape_decides() -> None:
    model = _normalized("float[batch, sequence, 8] x", ROWS)
    assert "Min" not in [node.op_type for node in model.graph]
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    (y,) = run(model, {"x": x})
    np.testing.assert_array_equal(y, -x)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (ROWS.replace("y = Reshape (w, dims)", "y = ConstantOfShape (dims)"), "nothing fails at other sizes"),
        (ROWS.replace("(b, least, i8)", "(b, least, all)"), "the last dim takes what is left"),
    ],
)
def test_a_minimum_that_stays(body: str, why: str) -> None:
    constants = f"{CONSTANTS}, int64[1] all = {{-1}}"
    assert "Min" in [node.op_type for node in _normalized("float[batch, sequence, 8] x", body, constants).graph], why


def test_sizes_of_other_dims_decide_nothing() -> None:
    """The rows are counted by another input's dim, so either size may be the smaller one."""
    body = ROWS.replace("least = Min (n, limit)", "m = Shape (other) least = Min (n, m)")
    model = _normalized("float[batch, sequence, 8] x, float[length] other", body)
    assert "Min" in [node.op_type for node in model.graph]

"""Resize to computed sizes states its scales where they are whole."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.graph import normalize
from tests.support.graphs import graph, run

_CONSTANTS = "int64[4] c = {1, 1, 2, 3}, int64[2] d = {4, 2}, int64[4] two = {2, 2, 2, 2}, int64[1] axes = {2}"


@pytest.mark.parametrize(
    ("body", "scales"),
    [
        ("s = Shape(x)  t = Mul(s, c)  y = Resize(x, , , t)", [1, 1, 2, 3]),
        ('s = Shape(x)  t = Mul(s, c)  y = Resize<mode = "linear">(x, , , t)', [1, 1, 2, 3]),
        ("s = Shape<start = 2>(x)  t = Mul(s, d)  y = Resize<axes = [2, 3]>(x, , , t)", [4, 2]),
        ("s = Shape(x)  y = Resize(x, , , s)", [1, 1, 1, 1]),
    ],
)
def test_whole_factors_become_scales(body: str, scales: list[int]) -> None:
    model = graph("float[N, 3, H, W] x", "float[] y", body, constants=_CONSTANTS)
    after = normalize.normalize(model.clone()).model
    (node,) = [n for n in after.graph if n.op_type == "Resize"]
    assert len(node.inputs) == 3 and node.inputs[2].const_value.numpy().tolist() == scales
    assert len(list(after.graph)) == 1
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 7)).astype(np.float32)}
    np.testing.assert_allclose(run(after, feeds)[0], run(model, feeds)[0], rtol=1e-6)


def test_a_name_that_is_taken() -> None:
    constants = f"{_CONSTANTS}, float y_scales = {{2}}"
    model = graph(
        "float[N, 3, H, W] x", "float[] z",
        "s = Shape(x)  t = Mul(s, c)  y = Resize(x, , , t)  z = Mul(y, y_scales)", constants=constants,
    )  # fmt: skip
    feeds = {"x": np.ones((1, 3, 2, 2), np.float32)}
    np.testing.assert_array_equal(run(normalize.normalize(model).model, feeds)[0], np.full((1, 3, 4, 6), 2, np.float32))


@pytest.mark.parametrize(
    "body",
    [
        "s = Shape(x)  t = Div(s, two)  u = Mul(t, c)  y = Resize(x, , , u)",
        "s = Shape(z)  y = Resize(x, , , s)",
        's = Shape(x)  t = Mul(s, c)  y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , t)',
    ],
    ids=["part", "another's", "aspect"],
)
def test_other_sizes_stay(body: str) -> None:
    model = graph("float[N, 3, H, W] x, float[N, 3, P, Q] z", "float[] y", body, constants=_CONSTANTS)
    (node,) = [n for n in normalize.normalize(model).model.graph if n.op_type == "Resize"]
    assert len(node.inputs) == 4

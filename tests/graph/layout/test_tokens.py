"""Tokens of maps whose sizes are dynamic: pixels that are joined, and maps that tokens become again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graph.layout.test_layout import WEIGHTS, borders, laid_out, model
from tests.support.graphs import run

TWO_SCALES = """
    q = Conv(x, p) r = Conv<strides = [2, 2]>(x, p) f = Reshape(q, flat) g = Reshape(r, flat) j = Concat<axis = 2>(f, g)
"""


@pytest.mark.parametrize(
    ("inputs", "rest", "left"),
    [
        ("float[N, 8, H, W] x", "y = Neg(j)", ["x", "j"]),
        ("float[N, 8, H, W] x", "y = Concat<axis = 2>(j, f)", ["x", "q", "r"]),  # f has another reader
        ("float[N, 8, 16, 16] x", "y = Neg(j)", ["x", "q", "r"]),  # kernels fuse this Concat
    ],
)
def test_pixels_of_maps_of_open_sizes_are_joined_in_channels_last(
    inputs: str, rest: str, left: list[str], tmp_path: Path
) -> None:
    source = model(TWO_SCALES + rest, inputs, constants="int64[3] flat = {0, 8, -1}")
    found, _ = laid_out(source, tmp_path)
    assert borders(found) == left
    for height, width in ((16, 16), (5, 3), (1, 1)) if "H" in inputs else ((16, 16),):
        x = np.random.default_rng(1).standard_normal((2, 8, height, width)).astype(np.float32)
        np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=1e-4, atol=1e-4)


def test_tokens_of_a_map_of_any_size_need_no_transpose(tmp_path: Path) -> None:
    body = (
        "a = Conv(x, p) f = Reshape(a, flat) t = Transpose<perm=[0,2,1]>(f) m = MatMul(t, k) z = Shape(a) "
        "n = Slice(z, zero, one) h = Slice(z, two, four) back = Concat<axis=0>(n, eight, h) "
        "s = Transpose<perm=[0,2,1]>(m) r = Reshape(s, back) y = Conv(r, p)"
    )
    numbers = {"zero": 0, "one": 1, "two": 2, "four": 4, "eight": 8}
    constants = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in numbers.items())
    constants += ", int64[3] flat = {0, 8, -1}"
    source = model(body, "float[N, 8, H, W] x", constants=constants, weights=WEIGHTS + ", float[8,8] k")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    assert sorted(borders(found)) == ["x", "y"]
    for size in ((2, 8, 6, 10), (1, 8, 1, 5), (3, 8, 7, 1)):
        feeds = {"x": np.random.default_rng(0).standard_normal(size).astype(np.float32)}
        for one, other in zip(run(found, feeds), run(source, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)

"""Constant folding of what exporters compute from shapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from tests.support.graphs import graph, hold, run

# As torchvision and optimum write masks of shifted windows: an image whose corner is numbered, cut into windows of 7.
_CONSTANTS = """int64[2] hw = {{{0}, {0}}}, int64[4] cut = {{{1}, 7, {1}, 7}}, int64[3] row = {{-1, 1, 49}},
    int64[3] column = {{-1, 49, 1}}, int64[2,2] corner = {{0, 0, 1, 1}}, int64[1] two = {{2}}, float[1] one = {{1}},
    float zero = {{0}}, float low = {{-100}}"""
_MASK = """image = ConstantOfShape(hw) ones = Expand(one, two) numbered = ScatterND(image, corner, ones)
    apart = Reshape(numbered, cut) turned = Transpose<perm = [0, 2, 1, 3]>(apart) keys = Reshape(turned, row)
    queries = Reshape(turned, column) apart_by = Sub(keys, queries) same = Equal(apart_by, zero)
    mask = Where(same, zero, low)"""


def shifted(size: int, end: str) -> ir.Model:
    return graph(
        "float[W, 49, 49] x", "float[W, 49, 49] y", f"{_MASK} {end}", constants=_CONSTANTS.format(size, size // 7)
    )


@pytest.mark.parametrize(
    ("size", "end", "left"),
    [
        (14, "y = Add(x, mask)", {"Add"}),  # 38 KB
        (140, "y = Add(x, mask)", {"Add", "Equal", "Where", "Sub", "Neg"}),  # 3.8 MB
        (14, "cut_image = Reshape(image, column) z = Add(x, mask) y = Add(z, cut_image)", {"Add"}),
    ],
)
def test_masks_of_shifted_windows(size: int, end: str, left: set[str]) -> None:
    """Small masks become constants, large ones are computed from what is small."""
    model = shifted(size, end)
    before = ir.from_proto(ir.to_proto(model))
    normalize(model)
    assert {node.op_type for node in model.graph} <= left
    x = np.linspace(-1, 1, (size // 7) ** 2 * 49 * 49, dtype=np.float32).reshape(-1, 49, 49)
    for wanted, result in zip(run(before, {"x": x}), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(wanted, result)


def test_weights_are_not_copied() -> None:
    body = "a = Slice(w, o, h, o) b = Slice(w, h, e, o) c = Concat<axis = 0>(b, a) p = MatMul(x, w) y = MatMul(p, c)"
    bounds = "int64[1] o = {0}, int64[1] h = {64}, int64[1] e = {128}"
    model = graph("float[N, 128] x, float[128, 128] w", "float[] y", body, constants=bounds)
    hold(model, {"w": np.ones((128, 128))}, np.float32)
    normalize(model)
    assert [node.op_type for node in model.graph][-3:] == ["Concat", "MatMul", "MatMul"]


@pytest.mark.parametrize(
    ("body", "depth", "left"),
    [
        ("c = Concat<axis = 0>(b, a) y = MatMul(x, c)", 128, ["MatMul"]),
        ("c = Concat<axis = 0>(b, a) u = Unsqueeze(c, o) y = MatMul(x, u)", 128, ["MatMul"]),
        ("p = MatMul(x, a) q = MatMul(x, b) y = Add(p, q)", 64, ["Slice", "Slice", "MatMul", "MatMul", "Add"]),
        ("c = Concat<axis = 0>(b, a, a) y = MatMul(x, c)", 192, ["Slice", "Slice", "Concat", "MatMul"]),
    ],
)
def test_weights_that_are_rearranged(body: str, depth: int, left: list[str]) -> None:
    """An exporter's order of gates is a constant, which is as large as what it is made of."""
    bounds = "int64[1] o = {0}, int64[1] h = {64}, int64[1] e = {128}"
    parts = "a = Slice(w, o, h, o) b = Slice(w, h, e, o)"
    model = graph("float[N, K] x, float[128, 128] w", "float[] y", f"{parts} {body}", constants=bounds)
    hold(model, {"w": np.arange(128 * 128).reshape(128, 128)}, np.float32)
    before = ir.from_proto(ir.to_proto(model))
    normalize(model)
    found = [node.op_type for node in model.graph if node.op_type != "Split"]
    assert found == [op for op in left if op != "Slice" or "Slice" in found]
    x = np.ones((2, depth), np.float32)
    for wanted, result in zip(run(before, {"x": x}), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(wanted, result)

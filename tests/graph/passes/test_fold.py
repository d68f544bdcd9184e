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


_STANDARDIZED = """flat = Reshape(w, rows) mean = ReduceMean<keepdims = 0>(flat, last) centers = ReduceMean(flat, last)
    centered = Sub(flat, centers) squares = Mul(centered, centered) variance = ReduceMean<keepdims = 0>(squares, last)
    turned = Transpose<perm = [1, 0]>(flat) scaled = BatchNormalization(turned, gain, bias, mean, variance)
    again = Transpose<perm = [1, 0]>(scaled) v = Reshape(again, dims)"""
_ADAPTED = "product = MatMul(down, up) scaled = Mul(product, half) v = Add(w, scaled)"
_POSITIONS = (
    "sines = Sin(w) cosines = Cos(w) both = Concat<axis = 1>(sines, cosines) v = ReduceMax<keepdims = 0>(both, last)"
)


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("body", "end"), [(_STANDARDIZED, "y = Conv(x, v)"), (_ADAPTED, "y = MatMul(x, v)"), (_POSITIONS, "y = Add(x, v)")]
)
def test_weights_that_are_computed(body: str, end: str, dtype: str) -> None:
    """A standardized weight, one with an adapter and a table of positions are constants."""
    sizes = {"w": (96, 96, 3, 3) if "Conv" in end else (96, 96), "down": (96, 4), "up": (4, 96)}
    sizes |= {"gain": (96,), "bias": (96,), "half": ()}
    bounds = "int64[2] rows = {96, -1}, int64[4] dims = {96, 96, 3, 3}, int64[1] last = {1}"
    inputs = ", ".join(f"{dtype}[{','.join(map(str, size))}] {name}" for name, size in sizes.items())
    x = f"{dtype}[N, 96, 5, 5] x" if "Conv" in end else f"{dtype}[N, 96] x"
    model = graph(f"{x}, {inputs}", f"{dtype}[] y", f"{body} {end}", constants=bounds)
    rng, kind = np.random.default_rng(0), np.float16 if dtype == "float16" else np.float32
    hold(model, {name: rng.uniform(0.1, 1, size) for name, size in sizes.items()}, kind)
    before = ir.from_proto(ir.to_proto(model))
    normalize(model)
    assert len(model.graph) == 1
    given = rng.standard_normal((2, 96, 5, 5) if "Conv" in end else (2, 96)).astype(kind)
    for wanted, result in zip(run(before, {"x": given}), run(model, {"x": given}), strict=True):
        limit = 0.02 if dtype == "float16" else 1e-4
        np.testing.assert_allclose(result, wanted, rtol=limit, atol=limit * float(np.abs(wanted).max()))


def test_weights_that_are_computed_and_read_stay() -> None:
    body = "v = Mul(w, w) p = MatMul(x, w) q = MatMul(p, v) y = Add(q, x)"
    model = graph("float[N, 128] x, float[128, 128] w", "float[] y", body)
    hold(model, {"w": np.ones((128, 128))}, np.float32)
    normalize(model)
    assert [node.op_type for node in model.graph] == ["Mul", "MatMul", "MatMul", "Add"]

"""Gates of squeeze-excites by products of rows: which become convolutions, what stays, and that results stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from onnxopt.graph.rewrite.convolutions.pooled_gates import to_convolutions
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run

_CHANNELS, _HIDDEN = 6, 3
_ARRAYS = {
    "v": (_HIDDEN, _CHANNELS), "vt": (_CHANNELS, _HIDDEN), "w": (_CHANNELS, _HIDDEN), "wt": (_HIDDEN, _CHANNELS),
    "a": (_HIDDEN,), "b": (_CHANNELS,), "rows": (2, _CHANNELS),
}  # fmt: skip
_CONSTANTS = (
    "int64[2] hw = {2, 3}, int64[2] nhwc = {1, 2}, int64[4] tall = {-1, 6, 1, 1}, int64[4] wide = {-1, 1, 1, 6}, "
    "float lo = {0}, float hi = {6}, float three = {3}, float sixth = {0.16666667}, int64[2] flat = {0, -1}, "
    "int64[1] width = {3}"
)
_POOLS = {
    "pool": "p = GlobalAveragePool(x) r = Flatten(p)",
    "view": "p = GlobalAveragePool(x) r = Reshape(p, flat)",
    "squeeze": "p = ReduceMean<keepdims = 1>(x, hw) r = Squeeze(p, hw)",
    "mean": "r = ReduceMean<keepdims = 0>(x, hw)",
}
_GEMM = "h = Gemm<transB = 1>(r, v, a) f = Relu(h) k = Gemm<transB = 1>(f, w, b)"
_DENSE = "m = MatMul(r, vt) h = Add(m, a) s = Sigmoid(h) f = Mul(h, s) n = MatMul(f, wt) k = Add(b, n)"
_BARE = "f = MatMul(r, vt) k = Gemm(f, wt)"
_HARD = "t = Add(k, three) c = Clip(t, lo, hi) g = Mul(c, sixth)"
_ENDS = {"sigmoid": "g = Sigmoid(k)", "hard": _HARD, "none": "g = Identity(k)"}
_UNSQUEEZED, _RESHAPED = "q = Unsqueeze(g, hw) y = Mul(x, q)", "q = Reshape(g, tall) y = Mul(q, x)"


def model(body: str, x: str = "N, 6, H, W", extra: str = "") -> ir.Model:
    inputs = ", ".join(f"float{list(dims)} {name}" for name, dims in _ARRAYS.items())
    source = graph(f"float[{x}] x, {inputs}", f"float[] y{extra}", body, constants=_CONSTANTS)
    random = np.random.default_rng(0)
    hold(source, {name: random.standard_normal(dims) for name, dims in _ARRAYS.items()}, np.float32)
    return normalize.normalize(source).model


def changed(source: ir.Model, dims: tuple[int, ...] = (2, 6, 4, 5)) -> list[str]:
    """The operators after the change, whose results are the same."""
    found = source.clone()
    inferred = infer(found)
    inferred.write()
    to_convolutions(found.graph, inferred)
    found = normalize.normalize(found).model
    feeds = {"x": np.random.default_rng(1).standard_normal(dims).astype(np.float32)}
    feeds |= {v.name: np.ones(2, np.float32) for v in source.graph.inputs if v.name != "x"}
    for one, other in zip(run(found, feeds), run(source, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return [node.op_type for node in found.graph]


@pytest.mark.parametrize("products", [_GEMM, _DENSE, _BARE])
@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
@pytest.mark.parametrize("view", [_UNSQUEEZED, _RESHAPED])
@pytest.mark.parametrize("pool", _POOLS.values(), ids=_POOLS)
def test_each_form_is_two_convolutions(pool: str, products: str, end: str, view: str) -> None:
    operators = changed(model(f"{pool} {products} {end} {view}"))
    assert operators.count("Conv") == 2
    assert not {"MatMul", "Gemm", "Flatten", "Reshape", "Squeeze", "Unsqueeze"} & set(operators)


@pytest.mark.parametrize(
    "pool", ["r = ReduceMean<keepdims = 0>(x, nhwc)", "p = ReduceMean(x, nhwc) r = Squeeze(p, nhwc)"]
)
def test_channels_last(pool: str) -> None:
    operators = changed(
        model(f"{pool} {_DENSE} {_HARD} q = Reshape(g, wide) y = Mul(x, q)", "N, H, W, 6"), (2, 4, 5, 6)
    )
    assert operators.count("Conv") == 2 and "MatMul" not in operators


@pytest.mark.parametrize(
    ("body", "extra"),
    [
        # a head, a gate that another node reads, a hidden value that another reads, one product, a computed bias
        (f"{_POOLS['pool']} {_GEMM} y = Sigmoid(k)", ""),
        (f"{_POOLS['pool']} {_GEMM} g = Sigmoid(k) z = Neg(g) {_UNSQUEEZED}", ", float[] z"),
        (f"{_POOLS['pool']} {_GEMM} g = Sigmoid(k) z = Neg(f) {_UNSQUEEZED}", ", float[] z"),
        (f"{_POOLS['pool']} k = MatMul(r, vt) m = Concat<axis = 1>(k, k) g = Sigmoid(m) {_UNSQUEEZED}", ""),
        (f"{_POOLS['pool']} h = Gemm<transB = 1, alpha = 0.5>(r, v, a) k = Gemm<transB = 1>(h, w) g = Sigmoid(k) "
         f"{_UNSQUEEZED}", ""),
        # no mean of height and width, a function of rows that are no product
        (f"p = ReduceMax(x, hw) r = Flatten(p) {_GEMM} g = Sigmoid(k) {_UNSQUEEZED}", ""),
        (f"p = ReduceMean(x, width) r = ReduceMax<keepdims = 0>(p, hw) {_GEMM} g = Sigmoid(k) {_UNSQUEEZED}", ""),
        (f"{_POOLS['pool']} {_GEMM} l = Tanh(r) o = Mul(l, k) g = Sigmoid(o) {_UNSQUEEZED}", ""),
        (f"{_POOLS['pool']} {_GEMM} o = Mul(k, b) g = Sigmoid(o) {_UNSQUEEZED}", ""),
    ],
)  # fmt: skip
def test_others_stay(body: str, extra: str) -> None:
    assert "Conv" not in changed(model(body, extra=extra))

"""Attention of channels before tokens, as YOLO writes it, is attention, and maps of convolutions are its tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.attention.channels_first import join_heads, swap_products, turn_operands
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.attention.attention_graphs import ops, rewritten
from tests.support.graphs import graph, hold, run

_TURNED = "perm = [0, 1, 3, 2]"
_PARTS = "q, k, v = Split<axis = 2>(r, sizes)"
_SCORES = f"qt = Transpose<{_TURNED}>(q) s = MatMul(qt, k) f = Mul(s, scale) p = Softmax<axis = -1>(f)"
_RESULT = f"pt = Transpose<{_TURNED}>(p) o = MatMul(v, pt)"
_MAP = "oo = Reshape(o, map) vv = Reshape(v, map) y = Add(oo, vv)"
_CONSTANTS = (
    "int64[4] apart = {0, 2, 48, -1}, int64[4] tokens = {0, 0, 2, 48}, int64[3] sizes = {8, 8, 32},"
    "int64[4] map = {0, 64, 4, 5}, int64[3] rows = {0, 64, 20}, int64[3] joined = {0, 20, 64}, int64[1] two = {2},"
    "int64[1] none = {0}, int64[1] end = {8}, int64[1] next = {16}, int64[1] last = {48}"
)
_IMAGE, _ROWS, _TOKENS = "B, 96, 4, 5", "B, 96, 20", "B, 20, 96"
# The dims of x, the nodes, and how many Transposes remain: none where x and y are tokens, else one for x and each map.
FORMS = {
    "map": (_IMAGE, f"r = Reshape(x, apart) {_PARTS} {_SCORES} {_RESULT} {_MAP}", 3),
    "fixed batch": ("2, 96, 4, 5", f"r = Reshape(x, apart) {_PARTS} {_SCORES} {_RESULT} {_MAP}", 3),
    "rows": (_ROWS, f"r = Reshape(x, apart) {_PARTS} {_SCORES} {_RESULT} y = Reshape(o, rows)", 2),
    "scaled queries": (
        _IMAGE, f"r = Reshape(x, apart) {_PARTS} g = Mul(q, scale) qt = Transpose<{_TURNED}>(g) s = MatMul(qt, k) "
        f"p = Softmax<axis = 3>(s) {_RESULT} {_MAP}", 3,
    ),
    "slices": (
        _IMAGE, "r = Reshape(x, apart) q = Slice(r, none, end, two) k = Slice(r, end, next, two) "
        f"v = Slice(r, next, last, two) {_SCORES} {_RESULT} {_MAP}", 3,
    ),
    "permuted tokens": (
        _TOKENS, f"t = Reshape(x, tokens) r = Transpose<perm = [0, 2, 3, 1]>(t) {_PARTS} {_SCORES} {_RESULT} "
        "ot = Transpose<perm = [0, 3, 1, 2]>(o) y = Reshape(ot, joined)", 0,
    ),
}  # fmt: skip


def _model(dims: str, body: str, dtype: str = "float") -> ir.Model:
    model = graph(f"{dtype}[{dims}] x, {dtype} scale", f"{dtype}[] y", body, constants=_CONSTANTS)
    hold(model, {"scale": np.array(0.35)}, "float32" if dtype == "float" else dtype)
    return model


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_attention(form: str, dtype: str, tmp_path: Path) -> None:
    dims, body, transposes = FORMS[form]
    model = _model(dims, body, dtype)
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert ops(found).count("Transpose") == transposes
    shape = [2 if d in ("B", "2") else int(d) for d in dims.split(", ")]
    x = np.random.default_rng(0).standard_normal(shape).astype(model.graph.inputs[0].dtype.numpy())  # type: ignore[union-attr]
    atol = 1e-5 if dtype == "float" else 4e-3
    np.testing.assert_allclose(run(found, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-3, atol=atol)


_SHARED = f"r = Reshape(x, apart) {_PARTS} {_SCORES} {_RESULT} z = Abs(pt) w = MatMul(o, z) y = Reshape(w, map)"


@pytest.mark.parametrize(
    "body",
    [
        _SHARED,
        f"r = Reshape(x, apart) {_PARTS} {_SCORES.replace('-1', '2')} {_RESULT} {_MAP}",
        f"r = Reshape(x, apart) {_PARTS} {_SCORES} o = MatMul(v, p) {_MAP}",
    ],
    ids=["other readers of the weights", "Softmax of queries", "weights as they are"],
)  # fmt: skip
def test_what_stays(body: str) -> None:
    model = _model(_IMAGE, body)
    InferShapesPass()(model)
    before = ops(model)
    assert (swap_products(model), turn_operands(model)) == (0, 0)
    assert ops(model) == before


def test_views_of_other_heads_stay() -> None:
    """Only neighbouring dims are joined, and no dim of the result is copied from where another one is then."""
    for perm, target in (([0, 2, 1, 3], [0, 8, 4, 5]), ([0, 2, 3, 1], [0, 64, 0, 5]), ([0, 2, 3, 1], [0, 32, 8, 5])):
        body = f"t = Transpose<perm = {perm}>(x) y = Reshape(t, s)"
        s = ", ".join(map(str, target))
        model = graph("float[B, 20, 2, 32] x", "float[] y", body, constants=f"int64[4] s = {{{s}}}")
        InferShapesPass()(model)
        assert join_heads(model) == 0


def test_usual_attention_stays() -> None:
    body = (
        "a = Reshape(x, tokens) t = Transpose<perm = [0, 2, 1, 3]>(a) q, k, v = Split<axis = 3>(t, sizes) "
        f"kt = Transpose<{_TURNED}>(k) g = Mul(kt, scale) s = MatMul(q, g) p = Softmax(s) y = MatMul(p, v)"
    )
    model = _model(_TOKENS, body)
    InferShapesPass()(model)
    before = ops(model)
    assert (swap_products(model), turn_operands(model), join_heads(model)) == (0, 0, 0)
    assert ops(model) == before

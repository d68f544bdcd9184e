"""Attention of a half model whose values TorchScript casts to float32: it stays one of 16 bits, its result float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.support.attention.attention_graphs import ops, rewritten
from tests.support.graphs import graph, run

_CONSTANTS = (
    "int64[4] apart = {0, 0, 2, 8}, int64[3] joined = {0, 0, 16}, float zero = {0}, float low = {-inf},"
    "float least = {-3.4028234663852886e38}, float root = {0.35355339}"
)
_HEADS = " ".join(
    f"{n}a = Reshape({n}x, apart) {n} = Transpose<perm = [0, 2, 1, 3]>({n}a)" for n in ("q", "k", "v")
)  # fmt: skip
_RESULT = "t = Transpose<perm = [0, 2, 1, 3]>(o) j = Reshape(t, joined)"
_SCORES = "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) f = Cast<to = 1>(s)"
_GUARDED = "p = Softmax<axis = -1>(m) n = IsNaN(p) g = Where(n, zero, p)"
_WIDE = "vw = Cast<to = 1>(v) o = MatMul(g, vw)"
FORMS = {
    "no mask": f"{_SCORES} g = Softmax<axis = -1>(f) {_WIDE}",
    "a mask": f"{_SCORES} b = Where(shown, zero, least) m = Add(f, b) g = Softmax<axis = -1>(m) {_WIDE}",
    "guarded rows": f"{_SCORES} b = Where(shown, zero, low) m = Add(f, b) {_GUARDED} {_WIDE}",
}


def _model(body: str, end: str = "y = Neg(j)", dtype: str = "float16") -> ir.Model:
    inputs = ", ".join(f"{dtype}[B, T, 16] {n}x" for n in ("q", "k", "v"))
    return graph(f"{inputs}, bool[B, 1, T, T] shown", "float[] y", f"{_HEADS} {body} {_RESULT} {end}",
                 constants=_CONSTANTS)  # fmt: skip


def _feeds(hidden: bool) -> dict[str, np.ndarray]:
    """hidden: whether the first query sees no key."""
    rng = np.random.default_rng(0)
    shown = np.tril(np.ones((2, 1, 5, 5), bool))
    shown[:, :, :1] &= not hidden
    return {f"{n}x": rng.standard_normal((2, 5, 16)).astype(np.float16) for n in "qkv"} | {"shown": shown}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_attention_of_16_bits(form: str, tmp_path: Path) -> None:
    model = _model(FORMS[form])
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    (attention,) = [node for node in found.graph if node.op_type == "MultiHeadAttention"]
    assert attention.inputs[0] is not None and attention.inputs[0].dtype == ir.DataType.FLOAT16
    assert "Transpose" not in [op for op in ops(found) if form != "guarded rows"]
    for hidden in (False, form == "guarded rows"):
        expected, result = (run(m, _feeds(hidden))[0] for m in (model, found))
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=4e-3, atol=4e-3)


def test_views_of_other_casts_stay(tmp_path: Path) -> None:
    model = graph("float16[B, T, 16] x", "float[] y", "w = Cast<to = 1>(x) r = Reshape(w, apart) "
                  "y = Transpose<perm = [0, 2, 1, 3]>(r)", constants=_CONSTANTS)  # fmt: skip
    assert ops(rewritten(model, tmp_path)[0]) == ops(model)


def test_attention_of_float32_stays_of_float32(tmp_path: Path) -> None:
    """The model casts queries and keys before their product: it asks for scores of float32."""
    body = (
        "qw = Cast<to = 1>(q) kw = Cast<to = 1>(k) kt = Transpose<perm = [0, 1, 3, 2]>(kw) s = MatMul(qw, kt) "
        f"f = Mul(s, root) g = Softmax<axis = -1>(f) {_WIDE}"
    )
    found, done = rewritten(_model(body), tmp_path)
    assert done.applied["attention"] == 1
    (attention,) = [node for node in found.graph if node.op_type == "MultiHeadAttention"]
    assert attention.inputs[0] is not None and attention.inputs[0].dtype == ir.DataType.FLOAT


def test_values_of_another_dtype(tmp_path: Path) -> None:
    body = f"{_SCORES} g = Softmax<axis = -1>(f) vb = Cast<to = 16>(v) vw = Cast<to = 1>(vb) o = MatMul(g, vw)"
    _, done = rewritten(_model(body), tmp_path)
    assert done.applied["attention"] == 0
    assert "q is FLOAT16 and v is FLOAT" in done.refusals[0].reason

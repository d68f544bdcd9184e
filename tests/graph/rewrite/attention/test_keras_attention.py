"""Attention as tf2onnx writes that of Keras: an Einsum by way of five dims and three, masks by arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.graph.normalize import normalize
from tests.support.attention.attention_graphs import ops, rewritten
from tests.support.graphs import graph, run

_CONSTANTS = (
    "int64[1] a1 = {1}, int64[1] a2 = {2}, int64[1] a3 = {3}, int64[1] a4 = {4}, int64[3] rows = {-1, 6, 16},"
    "int64[3] columns = {-1, 16, 6}, int64[5] scores = {-1, 4, 6, 6, 1}, int64[3] weights = {-1, 6, 6},"
    "int64[4] apart = {-1, 4, 6, 16}, int64[3] joined = {-1, 6, 64}, int64[4] heads = {-1, 6, 4, 16},"
    "int64[5] twice = {1, 1, 1, 2, 1}, float scale = {0.25}, float low = {-2.3e38}"
)
_QUERIES = "q5 = Unsqueeze(q, a3) qt = Transpose<perm = [0, 2, 1, 3, 4]>(q5) q3 = Reshape(qt, rows)"
_KEYS = "k5 = Unsqueeze({k}, a1) kp = Transpose<perm = [0, 3, 1, 2, 4]>(k5) k3 = Reshape(kp, rows)"
_VALUES = "v5 = Unsqueeze({v}, a2) vp = Transpose<perm = [0, 3, 2, 4, 1]>(v5) v3 = Reshape(vp, columns)"
_SCORES = (
    "kt = Transpose<perm = [0, 2, 1]>(k3) s3 = MatMul(q3, kt) s5 = Reshape(s3, scores) s4 = Squeeze(s5, a4) "
    "s = Mul(s4, scale) f = Cast<to = 1>(shown) n = Not(shown) g = Cast<to = 1>(n) h = Mul(s, f) l = Mul(low, g) "
    "m = Add(h, l) p = Softmax(m)"
)
_RESULT = (
    "p5 = Unsqueeze(p, a3) p3 = Reshape(p5, weights) vt = Transpose<perm = [0, 2, 1]>(v3) o3 = MatMul(p3, vt) "
    "o = Reshape(o3, apart) t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, joined)"
)
_REPEATED = " ".join(f"{n}u = Unsqueeze({n}, a3) {n}e = Tile({n}u, twice) {n}r = Reshape({n}e, heads)" for n in "kv")


@pytest.mark.parametrize("groups", [4, 2])
def test_it_is_attention(groups: int, tmp_path: Path) -> None:
    """groups: heads of keys and values; two are repeated as GroupQueryAttention does."""
    k, v, repeated = ("k", "v", "") if groups == 4 else ("kr", "vr", _REPEATED)
    body = f"{repeated} {_QUERIES} {_KEYS.format(k=k)} {_VALUES.format(v=v)} {_SCORES} {_RESULT}"
    inputs = f"float[N, 6, 4, 16] q, float[N, 6, {groups}, 16] k, float[N, 6, {groups}, 16] v, bool[1, 1, 6, 6] shown"
    source = graph(inputs, "float[] y", body, constants=_CONSTANTS)
    found, done = rewritten(normalize(source.clone()).model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert not {"Transpose", "Softmax", "MatMul"} & set(ops(found))
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal((2, 6, g, 16)).astype(np.float32)
        for n, g in zip("qkv", (4, groups, groups), strict=True)
    }
    feeds["shown"] = np.tril(np.ones((1, 1, 6, 6), bool))
    np.testing.assert_allclose(run(found, feeds)[0], run(source, feeds)[0], rtol=1e-4, atol=1e-5)

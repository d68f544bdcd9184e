"""Attention with biases of rows and columns, as SAM and ViTDet compute it, is attention with a bias of the scores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.attention import window_views
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.graphs import graph, run
from tests.support.refused import reason

B, N, S, H, R, C = 2, 2, 12, 8, 3, 4  # tokens in R rows and C columns
CONSTANTS = (
    "int64[5] five = {0, 12, 3, 2, 8}, int64[4] three = {3, -1, 12, 8}, int64[1] first = {0}, int64[1] one = {1}, "
    "int64[1] two = {2}, int64[1] last = {3}, int64[1] end = {4}, int64[1] inner = {3}, float scale = {0.35355339}, "
    "int64[5] apart = {-1, 3, 4, 3, 4}, int64[3] scores3 = {-1, 12, 12}, int64[4] map = {-1, 3, 4, 8}, "
    "int64[5] out5 = {-1, 2, 3, 4, 8}, int64[4] out = {-1, 3, 4, 16}, int64[4] heads = {-1, 2, 12, 8}, "
    "int64[4] scores4 = {-1, 2, 12, 12}, int64 at0 = {0}, int64 at1 = {1}, int64 at2 = {2}"
)
SLICED = " ".join(
    f"{n}1 = Slice(joined, {begin}, {end}, first) {n} = Squeeze({n}1, first)"
    for n, begin, end in (("q", "first", "one"), ("k", "one", "two"), ("v", "two", "last"))
)
SPLIT = "q1, k1, v1 = Split<axis = 0, num_outputs = 3>(joined) " + " ".join(
    f"{n} = Squeeze({n}1, first)" for n in "qkv"
)
GATHERED = " ".join(f"{n} = Gather<axis = 0>(joined, at{place})" for place, n in enumerate("qkv"))
HEADS = "x5 = Reshape(x, five) p = Transpose<perm = [2, 0, 3, 1, 4]>(x5) joined = Reshape(p, three) "
BIASES = (
    'qm = Reshape(q, map) rows = Einsum<equation = "bhwc,hkc->bhwk">(qm, of_rows) u = Unsqueeze(rows, end) '
    'columns = Einsum<equation = "bhwc,wkc->bhwk">(qm, of_columns) w = Unsqueeze(columns, inner) '
)
APART = "kt = Transpose<perm = [0, 2, 1]>(k) qs = Mul(q, scale) s = MatMul(qs, kt) s5 = Reshape(s, apart) "
VITDET = (
    APART + BIASES + "s6 = Add(s5, u) s7 = Add(s6, w) s8 = Reshape(s7, scores3) a = Softmax<axis = -1>(s8) "
    "o = MatMul(a, v) "
)
SAM = (
    BIASES + "b5 = Add(u, w) b4 = Reshape(b5, scores4) q4 = Reshape(q, heads) k4 = Reshape(k, heads) "
    "v4 = Reshape(v, heads) kt = Transpose<perm = [0, 1, 3, 2]>(k4) s = MatMul(q4, kt) s2 = Mul(s, scale) "
    "s3 = Add(s2, b4) a = Softmax<axis = -1>(s3) o = MatMul(a, v4) "
)
OUT = "o5 = Reshape(o, out5) ot = Transpose<perm = [0, 2, 3, 1, 4]>(o5) y = Reshape(ot, out)"


def _model(body: str, batch: str = "batch") -> ir.Model:
    inputs = f"float[{batch}, 12, 48] x, float[3, 3, 8] of_rows, float[4, 4, 8] of_columns"
    return graph(inputs, "float[] y", body, constants=CONSTANTS)


@pytest.mark.parametrize("batch", ["2", "batch"])
@pytest.mark.parametrize("parts", [SLICED, GATHERED, SPLIT], ids=["sliced", "gathered", "split"])
@pytest.mark.parametrize("form", [VITDET, SAM], ids=["vitdet", "sam"])
def test_it_is_attention(form: str, parts: str, batch: str, tmp_path: Path) -> None:
    source = _model(HEADS + parts + " " + form + OUT, batch)
    found = normalize(source.clone()).model
    done = rewrite(found, tmp_path)
    operators = Counter(n.op_type for n in found.graph)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert operators["MatMul"] == 2  # of the biases
    assert operators["Softmax"] == operators["Einsum"] == 0
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((B, S, 3 * N * H)), "of_rows": rng.standard_normal((R, R, H))}
    feeds = {k: v.astype(np.float32) for k, v in (feeds | {"of_columns": rng.standard_normal((C, C, H))}).items()}
    np.testing.assert_allclose(run(found, feeds)[0], run(source, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "rule", "why"),
    [
        ("t = Transpose<perm = [1, 0, 2]>(x) y = Gather<axis = 0>(t, at0)", "gathered",
         "the part is not taken of a Reshape's result"),
        ("x4 = Reshape(x, heads) y = Gather<axis = 0>(x4, at0)", "gathered",
         "Reshape does not merge two of five dims after the first one"),
        (f"{HEADS} p1 = Slice(joined, first, one, one) y = Squeeze(p1, one)", "sliced",
         "the part is not taken of a Reshape's result"),
        ("x4 = Reshape(x, heads) o5 = Reshape(x4, apart) ot = Transpose<perm = [0, 2, 3, 1, 4]>(o5) "
         "y = Reshape(ot, out)",
         "tokens", "Reshape does more than to take tokens apart"),
        ("s = Reshape(x, scores3) s5 = Reshape(s, apart) s6 = Add(s5, scale) s7 = Add(s6, scale) "
         "y = Reshape(s7, scores3)",
         "bias", "a bias is not known to have five dims"),
        ("s = Reshape(x, scores3) s5 = Reshape(s, apart) r = Unsqueeze(of_rows, first) u = Unsqueeze(r, end) "
         "s6 = Add(s5, u) s7 = Add(s6, u) y = Reshape(s7, scores3)",
         "bias", "the sum of both biases is smaller than the scores"),
    ],
)  # fmt: skip
def test_what_stays(body: str, rule: str, why: str) -> None:
    model = _model(body)
    InferShapesPass()(model)
    rules = {
        "gathered": window_views.PartOfJoined.rule(True),
        "sliced": window_views.PartOfJoined.rule(False),
        "tokens": window_views.TokensApart.rule(),
        "bias": window_views.BiasOfRowsAndColumns.rule(),
    }
    assert why in reason(model, "y", rules[rule])

"""Attention of tensors [T, B, C] as torch's MultiheadAttention computes it: what is rewritten; results stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.attention.sequence_first import HeadsJoinedByToken, SwappedHeads, SwappedTokens
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

WIDTH, HEADS = 32, 4
SIZE = WIDTH // HEADS
SIZES = {"B": 2, "T": 5, "K": 7}
DIMS = (
    "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] first = {0}, int64[1] inner = {-2}, "
    "int64[2] rows = {-1, 32}, int64[3] heads = {0, -1, 8}, int64[4] three = {0, 0, 3, 32}, "
    "int64[4] both = {0, 0, 2, 32}, int64[1] n = {4}, int64[1] h = {8}, int64[1] w = {32}, float scale = {0.35355339}"
)
ODD = "int64[3] odd = {-1, 5, 48}, int64[2] flat = {-1, 16}"
COUNTS = "b = Shape<start = 0, end = 1>(x) t = Shape<start = 1, end = 2>(x) c = Shape<start = 1, end = 2>(z) "
WEIGHTS = {"w3": (WIDTH, 3 * WIDTH), "b3": (3 * WIDTH,), "wq": (WIDTH, WIDTH), "bq": (WIDTH,), "wk": (WIDTH, 2 * WIDTH)}
WEIGHTS |= {"bk": (2 * WIDTH,), "wo": (WIDTH, WIDTH), "bo": (WIDTH,)}


def _parts(source: str, dims: str, names: str) -> str:
    """The parts of each token of `source`, as torch's _in_projection_packed takes them."""
    text = f"a{source} = Reshape({source}, {dims}) u{source} = Unsqueeze(a{source}, first) "
    text += f"v{source} = Transpose<perm = [3, 1, 2, 0, 4]>(u{source}) s{source} = Squeeze(v{source}, inner) "
    return text + " ".join(
        f"{n} = Gather(s{source}, {at})" for n, at in zip(names, ("zero", "one", "two"), strict=False)
    )


def _in_heads(name: str, count: str, four: bool) -> str:
    """[T, B, C] as [B N, T, H], and as [B, N, T, H]."""
    text = f" r{name} = Reshape({name}, heads) j{name} = Transpose<perm = [1, 0, 2]>(r{name}) "
    if not four:
        return text
    return text + f"d{name} = Concat<axis = 0>(b, n, {count}, h) h{name} = Reshape(j{name}, d{name}) "


SELF = "xt = Transpose<perm = [1, 0, 2]>(x) m = MatMul(xt, w3) l = Add(m, b3) " + _parts("l", "three", "qkv")
CROSS = (
    "xt = Transpose<perm = [1, 0, 2]>(x) zt = Transpose<perm = [1, 0, 2]>(z) mq = MatMul(xt, wq) q = Add(mq, bq) "
    "m = MatMul(zt, wk) l = Add(m, bk) " + _parts("l", "both", "kv")
)
FOUR = (
    "kt = Transpose<perm = [0, 1, 3, 2]>(hk) s0 = MatMul(hq, kt) s = Mul(s0, scale) p = Softmax<axis = -1>(s) "
    "o = MatMul(p, hv) ot = Transpose<perm = [2, 0, 1, 3]>(o) "
)
THREE = (  # baddbmm
    "kt = Transpose<perm = [1, 2, 0]>(rk) qs = Mul(jq, scale) s = MatMul(qs, kt) p = Softmax<axis = -1>(s) "
    "o = MatMul(p, jv) ot = Transpose<perm = [1, 0, 2]>(o) "
)
OUT = (
    "of = Reshape(ot, rows) g = Gemm<transB = 1>(of, wo, bo) dy = Concat<axis = 0>(t, b, w) gy = Reshape(g, dy) "
    "y = Transpose<perm = [1, 0, 2]>(gy)"
)


def _model(source: str, dims: int, static: bool, out: str = OUT) -> ir.Model:
    body, keys = COUNTS + source, "c" if source is CROSS else "t"
    for name, count in (("q", "t"), ("k", keys), ("v", keys)):
        body += _in_heads(name, count, dims == 4)
    body += (FOUR if dims == 4 else THREE) + out
    x, z = ("2, 5, 32", "2, 7, 32") if static else ("B, T, 32", "B, K, 32")
    weights = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in WEIGHTS.items())
    model = graph(f"float[{x}] x, float[{z}] z, {weights}", "float[] y", body, constants=DIMS)
    rng = np.random.default_rng(5)
    hold(model, {name: rng.standard_normal(shape) / 4 for name, shape in WEIGHTS.items()}, np.float32)
    return model


def _rewritten(source: ir.Model, folder: Path) -> tuple[ir.Model, Counter[str], int]:
    copy = normalize(source.clone()).model
    done = rewrite(copy, folder)
    return copy, Counter(n.op_type for n in copy.graph), done.applied["attention"]


def _check(source: ir.Model, found: ir.Model) -> None:
    rng = np.random.default_rng(6)
    shapes = {"x": (SIZES["B"], SIZES["T"], WIDTH), "z": (SIZES["B"], SIZES["K"], WIDTH)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for before, after in zip(run(source, feeds), run(found, feeds), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dims", [3, 4])
@pytest.mark.parametrize("source", [SELF, CROSS], ids=["self", "cross"])
def test_heads_are_read_where_they_lie(source: str, dims: int, static: bool, tmp_path: Path) -> None:
    model = _model(source, dims, static)
    found, operators, attentions = _rewritten(model, tmp_path)
    assert attentions == 1
    assert operators["Attention" if source is SELF else "MultiHeadAttention"] == 1
    assert operators["Transpose"] <= 1, operators  # of the weight of Gemm
    assert operators["Gather"] == operators["Gemm"] == 0
    assert operators["MatMul"] == (1 if source is SELF else 3)  # Attention runs the one of q, k and v
    _check(model, found)


@pytest.mark.parametrize("dims", [3, 4])
def test_a_sequence_that_stays_first(dims: int, tmp_path: Path) -> None:
    """Without a Transpose behind it, the result is turned once, and nothing is computed twice."""
    out = OUT.replace("gy = Reshape", "y = Reshape").replace("y = Transpose<perm = [1, 0, 2]>(gy)", "")
    model = _model(SELF, dims, static=False, out=out)
    found, operators, attentions = _rewritten(model, tmp_path)
    assert attentions == 1
    assert operators["MatMul"] == operators["Attention"] == 1  # the MatMul was the Gemm behind the attention
    assert operators["Gemm"] == 0
    _check(model, found)


def test_a_projection_that_others_read_is_computed_once(tmp_path: Path) -> None:
    model = _model(SELF, 4, static=False)
    projected = next(n for n in model.graph if n.name == "l")
    model.graph.outputs.append(projected.outputs[0])
    found, operators, attentions = _rewritten(model, tmp_path)
    assert attentions == 1
    assert operators["MatMul"] == 2
    _check(model, found)


@pytest.mark.parametrize(
    ("body", "rule", "why"),
    [
        ("r = Reshape(x, heads) y = Transpose<perm = [0, 2, 1]>(r)", SwappedHeads,
         "Transpose does not bring batch and heads to the front"),
        ("r = Reshape(x, rows) y = Transpose<perm = [1, 0]>(r)", SwappedHeads,
         "Transpose does not bring batch and heads to the front"),
        ("r = Reshape(x, three) s = Reshape(r, odd) y = Transpose<perm = [1, 0, 2]>(s)", SwappedHeads,
         "Reshape does not make three dims of three"),
        ("r = Reshape(x, odd) y = Transpose<perm = [1, 0, 2]>(r)", SwappedHeads,
         "Reshape does not take the heads of each token apart"),
        ("m = MatMul(own, x) t = Transpose<perm = [1, 0, 2]>(m) y = Reshape(t, rows)", HeadsJoinedByToken,
         "Reshape does not join the heads of each token"),
        ("m = MatMul(x, right) t = Transpose<perm = [1, 0, 2]>(m) y = Reshape(t, flat)", HeadsJoinedByToken,
         "the heads are not known to be a multiple of those that Reshape merges"),
        ("m = Mul(x, scale) t = Transpose<perm = [1, 0, 2]>(m) y = Reshape(t, rows)", HeadsJoinedByToken,
         "the heads are no product in three dims"),
        ("r = Mul(x, scale) y = Transpose<perm = [1, 0, 2]>(r)", SwappedTokens,
         "`r` is not known to come from tokens in the other order"),
    ],
)  # fmt: skip
def test_what_stays(body: str, rule: type, why: str) -> None:
    inputs = "float[5, B, 96] x, float[5, B, B] own, float[96, 8] right"
    model = graph(inputs, "float[] y", body, constants=f"{DIMS}, {ODD}")
    InferShapesPass()(model)
    assert why in reason(model, "y", rule.rule())

"""Attention that multiplies in three dims, with batch and heads in one, is attention all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.attention.joined_heads import JoinedHeads
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.attention.attention_graphs import ops, rewritten
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

CONSTANTS = (
    "int64[1] first = {0}, int64[1] second = {1}, int64[1] third = {2}, int64[1] fourth = {3}, int64[1] rest = {-1}, "
    "int64[1] one = {1}, int64[1] two = {2}, int64[1] eight = {8}, float half = {0.5}, int64 axis = {2}, "
    "float zero = {0}, int64[5] five = {1, 1, 2, 1, 1}"
)
SIZES = """
  shape = Shape(q) b = Slice(shape, first, second) n = Slice(shape, third, fourth)
  three = Concat<axis = 0>(rest, n, eight) four = Concat<axis = 0>(b, two, n, eight)
  scores3 = Concat<axis = 0>(rest, n, n) scores4 = Concat<axis = 0>(b, two, n, n)
  q3 = Reshape(q, three) k3 = Reshape(k, three) v3 = Reshape(v, three) kt = Transpose<perm = [0, 2, 1]>(k3)
"""
BIAS = "joined = Concat<axis = 0>(rest, one, n) a3 = Reshape(a, joined)"
FORMS = {
    "scores": "s = MatMul(q3, kt) s2 = Mul(s, half) s4 = Reshape(s2, scores4) p = Softmax<axis = -1>(s4) "
    "y = MatMul(p, v)",
    "a bias of keys": f"{BIAS} s = MatMul(q3, kt) s2 = Mul(s, half) s3 = Add(a3, s2) s4 = Reshape(s3, scores4) "
    "p = Softmax<axis = -1>(s4) y = MatMul(p, v)",
    "a bias and a mask": f"{BIAS} s = MatMul(q3, kt) s2 = Mul(s, half) s3 = Add(s2, a3) s4 = Reshape(s3, scores4) "
    "m4 = Add(s4, m) p = Softmax<axis = -1>(m4) y = MatMul(p, v)",
    "both products": "s = MatMul(q3, kt) s2 = Mul(s, half) p = Softmax<axis = 2>(s2) y3 = MatMul(p, v3) "
    "y = Reshape(y3, four)",
    "a mask in four dims between": "s = MatMul(q3, kt) s2 = Mul(s, half) s4 = Reshape(s2, scores4) m4 = Add(s4, m) "
    "m3 = Reshape(m4, scores3) p = Softmax<axis = -1>(m3) y3 = MatMul(p, v3) y = Reshape(y3, four)",
    "a bias that was computed in three dims": "e3 = MatMul(v3, kt) o3 = CumSum(e3, axis) s = MatMul(q3, kt) "
    "s2 = Mul(s, half) s3 = Add(s2, o3) s4 = Reshape(s3, scores4) p = Softmax<axis = -1>(s4) y = MatMul(p, v)",
    "raised scores": "s = MatMul(q3, kt) s2 = Mul(s, half) s4 = Reshape(s2, scores4) w = Where(real, zero, least) "
    "m4 = Add(s4, w) f4 = Max(m4, least) f3 = Reshape(f4, scores3) p = Softmax<axis = -1>(f3) y3 = MatMul(p, v3) "
    "y = Reshape(y3, four)",
    "weights in four dims between": "s = MatMul(q3, kt) s2 = Mul(s, half) p = Softmax<axis = -1>(s2) "
    "p4 = Reshape(p, scores4) p3 = Reshape(p4, scores3) y3 = MatMul(p3, v3) y = Reshape(y3, four)",
    "heads that are repeated": "k1 = Slice(k, first, one, one) u = Unsqueeze(k1, two) e = Expand(u, five) "
    "kg = Reshape(e, three) kgt = Transpose<perm = [0, 2, 1]>(kg) s = MatMul(q3, kgt) s4 = Reshape(s, scores4) "
    "p = Softmax<axis = -1>(s4) y = MatMul(p, v)",
    "scaled queries": "q2 = Mul(q3, half) s = MatMul(q2, kt) s4 = Reshape(s, scores4) p = Softmax<axis = -1>(s4) "
    "y = MatMul(p, v)",
}


def model_of(body: str, dims: str = "batch, 2, length") -> ir.Model:
    batch, _, length = dims.split(", ")
    inputs = ", ".join(f"float[{dims}, 8] {name}" for name in "qkv")
    inputs += f", float[{batch}, 2, {length}] a, float[{batch}, 1, 1, {length}] m, bool[{batch}, 1, 1, {length}] real"
    model = graph(f"{inputs}, float least", "float[] y", f"{SIZES} {body}", constants=CONSTANTS)
    hold(model, {"least": np.array(np.finfo(np.float32).min)}, np.float32)
    return model


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((batch, 2, length, 8)) for name in "qkv"}
    hidden = np.zeros((batch, 1, 1, length))
    hidden[::2, ..., 1:2] = -1e9
    arrays |= {"a": random.standard_normal((batch, 2, length)), "m": hidden}
    return {name: array.astype(np.float32) for name, array in arrays.items()} | {"real": hidden == 0}


@pytest.mark.parametrize("dims", ["batch, 2, length", "2, 2, 6"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_attention(form: str, dims: str, tmp_path: Path) -> None:
    model = model_of(FORMS[form], dims)
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert "Softmax" not in ops(found) and ops(found).count("MatMul") == ("computed" in form)
    for shape in ((2, 6),) if dims.startswith("2") else ((2, 6), (1, 1), (3, 17)):
        np.testing.assert_allclose(run(found, feeds(*shape))[0], run(model, feeds(*shape))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("qt = Transpose<perm = [1, 0, 2, 3]>(q) qr = Reshape(qt, three) s = MatMul(qr, kt) y = Reshape(s, scores4)",
         "Reshape `qr` merges something else than batch and heads"),
        ("s = MatMul(q3, kt) z = Neg(s) y = Reshape(s, scores4)",
         "`s` has other readers, for which it would be computed twice"),
        ("s = MatMul(q3, kt) p = Softmax<axis = 1>(s) y = Reshape(p, scores4)",
         "Softmax `p` is not along the last dim"),
        ("s = MatMul(q3, kt) t = Transpose<perm = [1, 0, 2]>(s) u = Transpose<perm = [1, 0, 2]>(t) "
         "y = Reshape(u, scores4)",
         "Transpose `u` moves batch and heads"),
        ("s = MatMul(q3, kt) p = CumSum(s, first) y = Reshape(p, scores4)", "CumSum `p` is between the Reshapes"),
        ("y = Reshape(q3, four)", "neither MatMul nor Softmax computes three dims"),
        ("y = Reshape(q, three)", "Reshape does not make four dims of three"),
        ("s = MatMul(q3, kt) swapped = Concat<axis = 0>(two, b, n, n) y = Reshape(s, swapped)",
         "Reshape `q3` merges something else than batch and heads"),
        ("t = Transpose<perm = [0, 2, 1]>(q3) y = Reshape(t, four)",
         "Reshape does more than to take batch and heads apart"),
    ],
)  # fmt: skip
def test_what_else_is_in_three_dims_stays(body: str, why: str) -> None:
    model = model_of(body)
    InferShapesPass()(model)
    assert why in reason(model, "y", JoinedHeads.rule())


@pytest.mark.parametrize("floor", ["Max(m4, some)", "Max(m4, least)"])
def test_scores_that_are_raised_otherwise(floor: str, tmp_path: Path) -> None:
    """To another number than the least, or beside a mask that may hold -inf."""
    mask = "Where(real, zero, least)" if "some" in floor else "Identity(m)"
    model = model_of(
        f"some = Neg(half) kt4 = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt4) w = {mask} m4 = Add(s, w) "
        f"f = {floor} p = Softmax<axis = -1>(f) y = MatMul(p, v)"
    )
    _, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == 0
    assert ["Max raises scores to" in refusal.reason for refusal in done.refusals] == [True]


@pytest.mark.parametrize(("joined", "applied"), [("4", 1), ("joined", 0)])
def test_a_bias_that_was_never_in_four_dims(joined: str, applied: int, tmp_path: Path) -> None:
    """It is reshaped, where it is known to have batch and heads in one dim."""
    inputs = f"float[2, 2, 6, 8] q, float[2, 2, 6, 8] k, float[2, 2, 6, 8] v, float[{joined}, 1, 6] a"
    model = graph(inputs, "float[] y", f"{SIZES} {FORMS['a bias of keys'].removeprefix(BIAS).replace('a3', 'a')}",
                  constants=CONSTANTS)  # fmt: skip
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == applied
    assert ["Reshape `s4` is between" in refusal.reason for refusal in done.refusals] == [True] * (1 - applied)
    arrays = feeds(2, 6) | {"a": np.random.default_rng(1).standard_normal((4, 1, 6)).astype(np.float32)}
    arrays = {name: arrays[name] for name in "qkva"}
    np.testing.assert_allclose(run(found, arrays)[0], run(model, arrays)[0], rtol=1e-4, atol=1e-5)

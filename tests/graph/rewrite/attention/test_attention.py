"""Attention as exporters write it becomes one operator, with the same results, and where it does not, it says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.graph.rewrite import to_portable
from tests.support.attention.attention_graphs import SIZE, Attention, agree, ops, rewritten, tokens
from tests.support.graphs import graph

CAUSAL = """
  shape = Shape(x) n1 = Gather<axis = 0>(shape, one_) n = Squeeze(n1, first)
  r = Range(none, n, step) rows = Unsqueeze(r, last) seen = GreaterOrEqual(rows, r)
"""
CAUSAL_CONSTANTS = (
    "int64[1] one_ = {1}, int64[1] first = {0}, int64[1] last = {-1}, int64 none = {0}, int64 step = {1}, "
    "float low = {-3.4e38}, float minus_infinity = {-inf}"
)
GUARD = "p0 = Softmax<axis = -1>(masked) bad = IsNaN(p0) p = Where(bad, zero, p0)"

FORMS = {
    "scaled product": Attention(),
    "divided product": Attention(scores="s = MatMul(q, kt) masked = Div(s, two)", constants="float two = {2}"),
    "scaled q and k": Attention(
        scores="q2 = Mul(q, root) k2 = Mul(root, kt) masked = MatMul(q2, k2)", constants="float root = {0.70710678}"
    ),
    "guard against NaN": Attention(weights=GUARD),
    "no bias": Attention(bias=False),
    "transposed in three dims": Attention(
        scores="k3 = Reshape(k, to3) t3 = Transpose<perm = [0, 2, 1]>(k3) k4 = Reshape(t3, to4) s = MatMul(q, k4) "
        "masked = Mul(s, half)",
        dims="2, 6",
        constants="int64[3] to3 = {-1, 6, 8}, int64[4] to4 = {2, 2, 8, 6}",
    ),
    "all-true mask": Attention(
        scores=f"{CAUSAL} ones = GreaterOrEqual(rows, none) m = Where(ones, zero, low) "
        "s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(s2, m)",
        constants=CAUSAL_CONSTANTS,
        weights=GUARD,
    ),
    "causal, added": Attention(
        scores=f"{CAUSAL} m = Where(seen, zero, low) s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(s2, m)",
        constants=CAUSAL_CONSTANTS,
    ),
    "causal, chosen": Attention(
        scores=f"{CAUSAL} s = MatMul(q, kt) s2 = Mul(s, half) masked = Where(seen, s2, minus_infinity)",
        constants=CAUSAL_CONSTANTS,
        weights=GUARD,
    ),
    "causal, hidden": Attention(
        scores=f"{CAUSAL} unseen = Not(seen) s = MatMul(q, kt) s2 = Mul(s, half) masked = Where(unseen, low, s2)",
        constants=CAUSAL_CONSTANTS,
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(2, 6), (1, 1), (3, 17)])
def test_it_becomes_one_operator_without_a_mask(form: str, shape: tuple[int, int], tmp_path: Path) -> None:
    attention = FORMS[form]
    if "batch" not in attention.dims and shape != (2, 6):
        pytest.skip("a static graph has one shape")
    model = attention.model()
    found, done = rewritten(model, tmp_path)
    assert (ops(found), done.applied["attention"], done.refusals) == (["Attention"], 1, ())
    (node,) = found.graph
    assert node.attributes["scale"].value == pytest.approx(0.5)
    assert node.attributes.get_int("unidirectional", 0) == int("causal" in form)
    agree(model, found, {"x": tokens(*shape)})


@pytest.mark.parametrize("form", FORMS)
def test_the_portable_form_holds_standard_operators_only(form: str, tmp_path: Path) -> None:
    model = FORMS[form].model()
    found, _ = rewritten(model, tmp_path)
    to_portable(found)
    assert {node.domain for node in found.graph} == {""}
    assert set(found.opset_imports) == {""}
    agree(model, found, {"x": tokens(2, 6)})


def test_a_mask_that_is_an_input_stays(tmp_path: Path) -> None:
    model = Attention(
        inputs=", float[batch, 1, length, length] mask",
        scores="s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(mask, s2)",
    ).model()
    found, _ = rewritten(model, tmp_path)
    assert ops(found) == ["Attention"]
    mask = np.where(np.random.default_rng(1).random((2, 1, 6, 6)) < 0.3, -1e9, 0).astype(np.float32)
    agree(model, found, {"x": tokens(2, 6), "mask": mask})


@pytest.mark.parametrize("masked", ["Add(biased, mask)", "Add(mask, biased)"])
def test_a_bias_and_a_mask_are_one_mask(masked: str, tmp_path: Path) -> None:
    model = Attention(
        inputs=", float[1, 2, length, length] positions, float[batch, 1, 1, length] mask",
        scores=f"s = MatMul(q, kt) s2 = Mul(s, half) biased = Add(s2, positions) masked = {masked}",
    ).model()
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == 1 and "Softmax" not in ops(found)
    positions = np.random.default_rng(1).standard_normal((1, 2, 6, 6)).astype(np.float32)
    mask = np.zeros((2, 1, 1, 6), np.float32)
    mask[0, ..., 4:] = -1e9
    agree(model, found, {"x": tokens(2, 6), "positions": positions, "mask": mask})


def test_masks_that_hide_a_key_together_stay_finite_in_float16(tmp_path: Path) -> None:
    model = graph(
        "float16[1, 2, 4, 8] q, float16[1, 2, 5, 8] k, float16[1, 2, 5, 8] v, bool[1, 2, 4, 5] a, bool[1, 1, 1, 5] b",
        "float16[1, 2, 4, 8] y",
        """
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        first = Where (a, zero, low)
        second = Where (b, zero, low)
        s = MatMul (q, t)
        once = Add (s, first)
        twice = Add (once, second)
        p = Softmax <axis = -1> (twice)
        y = MatMul (p, v)
        """,
        constants="float16 zero = {0}, float16 low = {-65504}",
    )
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == 1 and "Max" in ops(found)


def test_one_head_of_keys_and_values_for_all_heads(tmp_path: Path) -> None:
    model = graph(
        "float[batch, 4, length, 8] q, float[batch, 1, other, 8] k, float[batch, 1, other, 8] v",
        "float[batch, 4, length, 8] y",
        """
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, t)
        p = Softmax <axis = -1> (s)
        y = MatMul (p, v)
        """,
    )
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == 1 and "Softmax" not in ops(found)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, t, 8)).astype(np.float32) for n, t in ((4, 3), (1, 7), (1, 7)))
    agree(model, found, {"q": q, "k": k, "v": v})


def test_a_padding_mask_is_expanded_to_the_queries(tmp_path: Path) -> None:
    model = Attention(
        inputs=", bool[batch, 1, 1, length] mask",
        scores="m = Where(mask, zero, low) s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(s2, m)",
        constants="float low = {-3.4e38}",
    ).model()
    found, _ = rewritten(model, tmp_path)
    assert "Attention" in ops(found)
    assert "Softmax" not in ops(found)
    mask = np.ones((2, 1, 1, 6), np.bool_)
    mask[0, ..., 4:] = False
    agree(model, found, {"x": tokens(2, 6), "mask": mask})


def test_rows_that_the_mask_hides_completely_are_zeros_where_a_guard_made_them_so(tmp_path: Path) -> None:
    model = Attention(
        inputs=", bool[batch, 1, length, length] mask",
        scores="m = Where(mask, zero, low) s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(s2, m)",
        constants="float low = {-inf}",
        weights=GUARD,
    ).model()
    found, _ = rewritten(model, tmp_path)
    assert "Softmax" not in ops(found)
    assert {"ReduceMax", "Where"} <= set(ops(found))
    mask = np.ones((2, 1, 6, 6), np.bool_)
    mask[0, 0, 2] = False
    agree(model, found, {"x": tokens(2, 6), "mask": mask})


def test_cross_attention_has_as_many_keys_as_it_likes(tmp_path: Path) -> None:
    model = Attention(inputs=", float[batch, other, 16] memory", keys_from="memory").model()
    found, _ = rewritten(model, tmp_path)
    assert [op for op in ops(found) if op != "Add"] == ["MatMul"] * 3 + ["MultiHeadAttention"]
    agree(model, found, {"x": tokens(2, 6), "memory": tokens(2, 11, seed=1)})


def test_queries_behind_a_cache_keep_their_mask(tmp_path: Path) -> None:
    """They read the keys in front of them too. MultiHeadAttention's own mask would align the first query and key."""
    seen = """
      shape = Shape(x) n1 = Gather<axis = 0>(shape, one_) n = Squeeze(n1, first)
      others = Shape(memory) t1 = Gather<axis = 0>(others, one_) t = Squeeze(t1, first) begin = Sub(t, n)
      r = Range(begin, t, step) rows = Unsqueeze(r, last) c = Range(none, t, step) seen = GreaterOrEqual(rows, c)
    """
    scores = f"{seen} m = Where(seen, zero, low) s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(s2, m)"
    model = Attention(
        dims="batch, 3", inputs=", float[batch, 8, 16] memory", keys_from="memory", scores=scores,
        constants=CAUSAL_CONSTANTS,
    ).model()  # fmt: skip
    found, done = rewritten(model, tmp_path)
    (node,) = (n for n in found.graph if n.op_type == "MultiHeadAttention")
    assert done.applied["attention"] == 1
    assert not node.attributes.get_int("unidirectional", 0) and node.inputs[5] is not None
    agree(model, found, {"x": tokens(2, 3), "memory": tokens(2, 8, seed=1)})
    to_portable(found)
    agree(model, found, {"x": tokens(2, 3), "memory": tokens(2, 8, seed=1)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scores": "s = MatMul(q, kt) masked = Mul(s, factor)", "inputs": ", float factor"}, "not a constant"),
        ({"weights": "p = Softmax<axis = -2>(masked)"}, "Softmax normalizes along axis -2, not along the last one"),
        ({"size": 20}, "fused attention kernels take multiples of 8"),
        ({"scores": "s = MatMul(q, kt) c = Sigmoid(s) masked = Mul(c, half)"}, "Sigmoid `c` is between the"),
        (
            {
                "scores": "s = MatMul(q, kt) s2 = Mul(s, half) masked = Add(s2, mask)",
                "inputs": ", float[batch, 1, length, other] mask",
            },
            "the mask `mask` is not known to broadcast to the scores",
        ),
        (
            {
                "scores": "s = MatMul(q, kt) s2 = Mul(s, half) masked = Where(mask, s2, weak)",
                "inputs": ", bool[batch, 1, length, length] mask",
                "constants": "float weak = {-1}",
            },
            "does not hide them",
        ),
        ({"weights": "p0 = Softmax<axis = -1>(masked) bad = IsNaN(p0) p = Where(bad, half, p0)"}, "other than 0"),
        ({"weights": "p0 = Softmax<axis = -1>(masked) p = Mul(p0, half)"}, "Mul `p` is between Softmax and"),
        ({"scores": "s = MatMul(q, kt) s1 = Mul(s, half) masked = Sub(half, s1)"}, "Sub `masked` is between"),
        (
            {"inputs": ", float[batch, other, 16] memory", "keys_from": "memory", "scores": "s = MatMul(q, kt) "
             "s2 = Mul(s, half) masked = Add(s2, zero) "},
            None,
        ),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_said(change: dict, reason: str | None, tmp_path: Path) -> None:
    model = Attention(**change).model()
    found, done = rewritten(model, tmp_path)
    if reason is None:  # adding 0 everywhere is no mask
        assert done.refusals == ()
        assert "MultiHeadAttention" in ops(found)
        return
    (refusal,) = done.refusals
    assert reason in refusal.reason
    assert (refusal.op_type, refusal.node, refusal.neighbour) == ("Softmax", refusal.node, "a")
    assert "Softmax" in ops(found)


def test_a_softmax_elsewhere_is_no_attention(tmp_path: Path) -> None:
    from tests.support import graphs

    model = graphs.graph("float[n, 4] x", "float[n, 4] y", "y = Softmax<axis = -1>(x)")
    found, done = rewritten(model, tmp_path)
    assert (ops(found), done.refusals, sum(done.applied.values())) == (["Softmax"], (), 0)


def test_families_can_be_left_out(tmp_path: Path) -> None:
    model = Attention().model()
    without_merging, done = rewritten(model, tmp_path, leave_out=("merge",))
    assert [op for op in ops(without_merging) if op != "Add"] == ["MatMul"] * 3 + ["MultiHeadAttention"]
    assert "merge" not in done.applied
    untouched, done = rewritten(model, tmp_path, leave_out=("attention",))
    assert ops(untouched) == ops(model)
    assert sum(done.applied.values()) == 0


def test_rotary_embedding_by_tables_that_are_computed(tmp_path: Path) -> None:
    """Of two parts of each head in float32: the tables of whole heads are computed too."""
    rotated = "n1 = Shape<start = 1, end = 2>(x) cos = Slice(table, none, n1, rows) sin = Slice(other, none, n1, rows) "
    for name in "qk":
        rotated += f"{name}a, {name}b = Split<axis = -1, num_outputs = 2>({name}) " + "".join(
            f"{name}{part}{t} = Mul({name}{part}, {t}) " for part in "ab" for t in ("cos", "sin")
        )
        rotated += f"{name}low = Sub({name}acos, {name}bsin) {name}high = Add({name}bcos, {name}asin) "
        rotated += f"{name}y = Concat<axis = -1>({name}low, {name}high) "
    scores = rotated + "kyt = Transpose<perm = [0, 1, 3, 2]>(ky) s = MatMul(qy, kyt) masked = Mul(s, half)"
    shape = f"float[1, 1, 9, {SIZE // 2}]"
    constants = "int64[1] none = {0}, int64[1] rows = {2}"
    model = Attention(inputs=f", {shape} table, {shape} other", scores=scores, constants=constants).model()
    found, done = rewritten(model, tmp_path)
    assert done.applied["rotary"] == 2
    assert "Split" not in ops(found)
    tables = {name: tokens(1, 9, seed=1)[..., : SIZE // 2][:, None] for name in ("table", "other")}
    agree(model, found, {"x": tokens(2, 5), **tables})

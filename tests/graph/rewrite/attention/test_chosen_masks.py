"""Masks that are set over biased scores, and conditions that follow which of two numbers a mask holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.masks import parts
from onnxopt.graph.rewrite.masks.index_functions import ALWAYS, Affine, Truth
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.infer import InferShapesPass, infer
from tests.support.attention.attention_graphs import Attention, agree, rewritten, tokens
from tests.support.graphs import graph, hold, value

MASK = (
    "shape = Shape(x) n1 = Slice(shape, second, third) n = Squeeze(n1) r = Range(none, n, step) "
    "rows = Unsqueeze(r, last) seen = GreaterOrEqual(rows, r) shown = And(seen, real) "
)
CONSTANTS = (
    "int64[1] second = {1}, int64[1] third = {2}, int64[1] last = {-1}, int64 none = {0}, int64 step = {1}, "
    "float low = {-3.4e38}, float minus = {-1}, float least = {-3.4e38}, float one = {1}"
)
SCORES = MASK + "s = MatMul(q, kt) s2 = Mul(s, half) "
OVER = {
    "hides": "hidden = Not(shown) biased = Add(s2, bias) masked = Where(hidden, low, biased)",
    "hides, bias first": "hidden = Not(shown) biased = Add(bias, s2) masked = Where(hidden, low, biased)",
    "shows": "biased = Add(s2, bias) masked = Where(shown, biased, low)",
    "shows, bias first": "biased = Add(bias, s2) masked = Where(shown, biased, low)",
    "bool of a mask": "m = Where(shown, zero, low) hidden = Cast<to = 9>(m) biased = Add(s2, bias) "
    "masked = Where(hidden, low, biased)",
    "less": "m = Where(shown, zero, low) hidden = Less(m, minus) m2 = Where(hidden, low, bias) masked = Add(s2, m2)",
}


def masked(body: str) -> ir.Model:
    inputs = ", float[batch, 2, 1, length] bias, bool[batch, 1, 1, length] real"
    return Attention(scores=SCORES + body, inputs=inputs, constants=CONSTANTS).model()


@pytest.mark.parametrize("form", OVER)
def test_a_mask_over_biased_scores(form: str, tmp_path: Path) -> None:
    model = masked(OVER[form])
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    random = np.random.default_rng(1)
    for batch, length in ((2, 6), (1, 1), (3, 17)):
        real = np.arange(length) < np.maximum(length - np.arange(batch), 1)[:, None]
        bias = random.standard_normal((batch, 2, 1, length)).astype(np.float32)
        agree(model, found, {"x": tokens(batch, length), "bias": bias, "real": real[:, None, None]})


def test_what_the_numbers_follow_is_told_apart() -> None:
    """What is shown by position, and a condition beside it."""
    found = _parts(
        "r = Range(none, four, step) rows = Unsqueeze(r, last) seen = GreaterOrEqual(rows, r) both = And(seen, c) "
        "m = Where(both, zero, low) hidden = Cast<to = 9>(m) y = Not(hidden)"
    )
    assert found.shown == Truth(Affine(0, (1, -1)))
    assert [(c.value.name, c.negated) for c in found.conditions] == [("c", False)]


@pytest.mark.parametrize(
    ("condition", "negated"),
    [
        ("y = Cast<to = 9>(m)", True), ("y = Less(m, minus)", True), ("y = LessOrEqual(m, minus)", True),
        ("y = Greater(m, minus)", False), ("y = GreaterOrEqual(m, zero)", False), ("y = Equal(m, zero)", False),
        ("y = Equal(m, least)", True), ("h = Cast<to = 10>(m) y = Less(h, minus16)", True),
        ("e = Cast<to = 9>(m) y = Not(e)", False),
    ],
)  # fmt: skip
def test_the_condition_behind_a_choice_of_numbers(condition: str, negated: bool) -> None:
    found = _parts(f"m = Where(c, zero, low) {condition}")
    assert found.conditions == [parts.Condition(found.conditions[0].value, negated)]
    assert (found.conditions[0].value.name, found.shown) == ("c", ALWAYS)


@pytest.mark.parametrize(
    "condition",
    [
        "m = Where(c, zero, low) y = Less(m, one)",
        "m = Where(c, zero, x) y = Less(m, minus)",
        "m = Where(c, zero, low) y = Less(m, x)",
        "m = Where(c, zero, low) i = Cast<to = 7>(m) y = Cast<to = 9>(i)",
        "m = Add(x, low) y = Less(m, minus)",
        "m = Where(c, zero, tiny) h = Cast<to = 10>(m) w = Cast<to = 1>(h) y = Cast<to = 9>(w)",
    ],
    ids=["both are less", "one is no number", "no limit", "rounded to integers", "no choice", "rounded to nothing"],
)
def test_other_conditions_stay_whole(condition: str) -> None:
    assert [(c.value.name, c.negated) for c in _parts(condition).conditions] == [("y", False)]


def _parts(body: str) -> parts.Parts:
    constants = f"{CONSTANTS}, float zero = {{0}}, float tiny = {{1e-9}}, int64 four = {{4}}"
    model = graph("bool[4, 4] c, float[4, 4] x, float16 minus16", "bool[4, 4] y", body, constants=constants)
    hold(model, {"minus16": np.array(-1)}, np.float16)
    InferShapesPass()(model)
    return parts.condition_parts(value(model, "y"), False, -1e9, IndexValues(model.graph, infer(model)))


@pytest.mark.parametrize(
    ("slope", "reason"), [(0.5, None), (0.7, "the mask `bias` loses 0.1 where it is rounded to FLOAT16")]
)
def test_a_float32_bias_is_rounded_where_that_loses_little(slope: float, reason: str | None, tmp_path: Path) -> None:
    model = graph(
        "float16[1, 2, 600, 8] q, float16[1, 2, 600, 8] k, float16[1, 2, 600, 8] v, float[1, 1, 1, 600] bias",
        "float16[1, 2, 600, 8] y",
        """
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, t)
        wide = Cast <to = 1> (s)
        biased = Add (wide, bias)
        p = Softmax <axis = -1> (biased)
        p16 = Cast <to = 10> (p)
        y = MatMul (p16, v)
        """,
    )
    row = slope * np.arange(-599, 1)
    row[0] = -3.4e38
    hold(model, {"bias": row.reshape(1, 1, 1, 600)}, np.float32)
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == int(reason is None)
    assert [refusal.reason for refusal in done.refusals] == (
        [] if reason is None else [f"not recognised as attention: {reason}"]
    )
    if reason is None:
        random = np.random.default_rng(0)
        feeds = {name: random.standard_normal((1, 2, 600, 8)).astype(np.float16) for name in "qkv"}
        agree(model, found, feeds, 5e-3)

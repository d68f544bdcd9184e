"""Queries or keys with a constant factor that other products read too: attention takes a factor of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.graph.rewrite.attention import query_scale
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.attention.attention_graphs import Attention, agree, ops, rewritten, tokens

POSITIONS = ", float[1, 2, 8, length] positions"
FORMS = {
    "queries": "f = Mul(q, half) s = MatMul(f, kt) e = MatMul(f, positions) masked = Add(s, e)",
    "divided queries": "f = Div(q, half) s = MatMul(f, kt) e = MatMul(f, positions) masked = Add(s, e)",
    "keys": "f = Mul(kt, half) s = MatMul(q, f) e = Add(f, positions) e2 = MatMul(q, e) masked = Add(s, e2)",
}


@pytest.mark.parametrize("form", FORMS)
def test_attention_has_a_factor_of_its_own(form: str, tmp_path: Path) -> None:
    model = Attention(inputs=POSITIONS, scores=FORMS[form]).model()
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert "Softmax" not in ops(found)
    for batch, length in ((2, 6), (1, 1), (3, 17)):
        positions = np.random.default_rng(1).standard_normal((1, 2, 8, length)).astype(np.float32)
        agree(model, found, {"x": tokens(batch, length), "positions": positions}, 1e-4)


@pytest.mark.parametrize(
    ("scores", "copied"),
    [
        (FORMS["queries"], True),
        ("f = Mul(q, half) masked = MatMul(f, kt)", False),  # nothing else reads it
        ("f = Mul(q, q) s = MatMul(f, kt) e = MatMul(f, positions) masked = Add(s, e)", False),  # no constant factor
        ("f = Add(q, half) s = MatMul(f, kt) e = MatMul(f, positions) masked = Add(s, e)", False),  # no factor
    ],
)
def test_what_is_copied(scores: str, copied: bool) -> None:
    model = Attention(inputs=POSITIONS, scores=scores).model()
    InferShapesPass()(model)
    before = len(model.graph)
    assert query_scale.copy_shared_factors(model) == copied
    assert len(model.graph) - before == int(copied)


BIAS = ", float[batch, 2, length, length] bias, float[batch, 1, 1, length] hidden"
BIASED = {
    "factor": "s = MatMul(q, kt) t = Add(s, bias) masked = Mul(t, half)",
    "divisor": "s = MatMul(q, kt) t = Add(bias, s) masked = Div(t, two)",
    "two biases": "s = MatMul(q, kt) t = Add(s, bias) u = Add(t, hidden) masked = Mul(u, half)",
    "a bias behind it": "s = MatMul(q, kt) t = Add(s, bias) u = Mul(t, half) masked = Add(u, hidden)",
    "a bias that is subtracted": "s = MatMul(q, kt) t = Add(s, bias) u = Mul(t, half) masked = Sub(u, hidden)",
}


@pytest.mark.parametrize("form", BIASED)
def test_attention_has_its_factor_before_its_bias(form: str, tmp_path: Path) -> None:
    weights = "p = Softmax<axis = 3>(masked)"  # as torch.nn.functional.softmax(scores, dim=3)
    model = Attention(inputs=BIAS, scores=BIASED[form], weights=weights, constants="float two = {2}").model()
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert "Softmax" not in ops(found)
    random = np.random.default_rng(1)
    for batch, length in ((2, 6), (1, 1), (3, 17)):
        bias = random.standard_normal((batch, 2, length, length)).astype(np.float32)
        hidden = random.standard_normal((batch, 1, 1, length)).astype(np.float32)
        agree(model, found, {"x": tokens(batch, length), "bias": bias, "hidden": hidden}, 1e-4)


@pytest.mark.parametrize(
    "scores",
    [
        "s = MatMul(q, kt) t = Add(s, bias) masked = Mul(t, two)",  # may make an infinity of a mask
        "s = MatMul(q, kt) t = Add(s, bias) masked = Div(two, t)",  # no factor
        "s = MatMul(q, kt) t = Add(s, bias) masked = Mul(t, hidden)",  # no constant
        "s = MatMul(q, kt) t = Add(s, bias) u = Mul(t, half) masked = Add(u, t)",  # something else reads the sum
        "s = MatMul(q, kt) masked = Sub(bias, s)",
    ],
)
def test_factors_that_stay_behind_a_bias(scores: str) -> None:
    model = Attention(inputs=BIAS, scores=scores, constants="float two = {2}").model()
    InferShapesPass()(model)
    before = ops(model)
    assert not query_scale.multiply_biases(model)
    assert ops(model) == before

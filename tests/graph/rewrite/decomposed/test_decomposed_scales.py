"""A scale without an offset: which sums with 0 go, and which stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.decomposed import decomposed_scales
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.rewrite.schedule import apply
from onnxopt.graph.shapes.infer import infer
from tests.support.attention.attention_graphs import Attention, agree, ops, rewritten, tokens
from tests.support.graphs import graph, run

_CONSTANTS = (
    "float zero = {0}, float[1] row = {0}, float minus = {-0.0}, float one = {1}, float[1, 1, 1] wide = {0},"
    "float[2] two = {0, 0}, float little = {1e-30}, float less = {-1}, int64 none = {0}, int64[1] flat = {-1}"
)
SCALES = {
    "after": "s = Mul(a, a) t = Add(s, zero) y = Neg(t)",
    "before": "s = Mul(a, a) t = Add(zero, s) y = Neg(t)",
    "a row": "t = Add(a, row) y = Exp(t)",
    "minus 0": "t = Add(a, minus) y = Exp(t)",
    "a dividend": "t = Add(a, zero) y = Div(t, one)",
    "an exponent": "t = Add(a, zero) y = Pow(one, t)",
}
SUMS = {
    "more": ("t = Add(a, little) y = Neg(t)", "is not the constant 0"),
    "several": ("t = Add(a, two) y = Neg(t)", "is not the constant 0"),
    "computed": ("z = Sub(a, a) t = Add(a, z) y = Neg(t)", "is not the constant 0"),
    "integers": ("i = Cast<to = 7>(a) t = Add(i, none) y = Neg(t)", "of floats"),
    "more dims": ("t = Add(a, wide) y = Neg(t)", "may add dims"),
    "an output": ("s = Neg(a) y = Add(s, zero)", "an output of the model"),
    "a divisor": ("t = Add(a, zero) y = Div(one, t)", "divides by the sum"),
    "a divisor behind a view": ("t = Add(a, zero) u = Reshape(t, flat) v = Neg(one) y = Reciprocal(u)", "divides"),
    "a power": ("t = Add(a, zero) y = Pow(t, less)", "divides by the sum"),
}  # fmt: skip


def _applied(body: str) -> tuple[ir.Model, ir.Model, int]:
    model = graph("float[2, 2] a", "y", body, constants=_CONSTANTS)
    infer(model).write()
    found = model.clone()
    return model, found, apply(found, decomposed_scales.RULES[0], Scope(found.graph, infer(found)))


@pytest.mark.parametrize("form", SCALES)
def test_a_scale(form: str) -> None:
    model, found, count = _applied(SCALES[form])
    assert count == 1 and "Add" not in [node.op_type for node in found.graph]
    feeds = {"a": np.array([[1.5, -0.0], [0.0, -np.inf]], np.float32)}
    np.testing.assert_array_equal(*(run(m, feeds)[0] for m in (model, found)))


@pytest.mark.parametrize("form", SUMS)
def test_a_sum(form: str) -> None:
    body, reason = SUMS[form]
    model, found, count = _applied(body)
    assert count == 0
    assert [node.op_type for node in found.graph] == [node.op_type for node in model.graph]
    (node,) = (n for n in model.graph if n.op_type == "Add")
    x, zero = node.inputs
    assert x is not None and zero is not None
    assert reason in decomposed_scales.AddedZero(False).check(None, x, zero, node.outputs[0]).reason


def test_attention_of_paddle(tmp_path: Path) -> None:
    """Its queries are scaled by `scale`, which has an offset; q, k and v become one product again."""
    scores = "qs = Mul(q, factor) qo = Add(qs, none) masked = MatMul(qo, kt)"
    model = Attention(scores=scores, constants="float[1] factor = {0.35}, float none = {0}").model()
    found, done = rewritten(model, tmp_path)
    assert (done.applied["decomposed"], done.applied["attention"], done.refusals) == (1, 1, ())
    assert "Add" not in ops(found)
    agree(model, found, {"x": tokens(2, 6)})

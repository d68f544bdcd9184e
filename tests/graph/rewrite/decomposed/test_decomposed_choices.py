"""A choice by arithmetic becomes Where: in which spellings, and what stays a sum."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.passes.operand_order import OperandOrderPass
from onnxopt.graph.rewrite.decomposed import decomposed_choices
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.rewrite.schedule import apply
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run

_CASTS = "f = Cast<to = 1>(c) n = Not(c) g = Cast<to = 1>(n)"
_CONSTANTS = (
    "float low = {-2.37e38}, float one = {1}, float two = {2}, float[1, 3] m = {1, 0, 1},"
    "float[1, 3] l = {0, -9, -0.0}, float[1, 3] h = {1, 0.5, 1}, float[1, 3] k = {2, -9, 0},"
    "float[2, 3] w = {0, -9, 0, 0, -8, 0},"
    "float[1] z = {0}, float[2, 3] v = {0, -9, 0, 0, -9, 0}"
)
CHOICES = {
    "casts": f"{_CASTS} p = Mul(a, f) q = Mul(b, g) y = Add(p, q)",
    "other order": f"{_CASTS} p = Mul(f, a) q = Mul(g, b) y = Add(q, p)",
    "one less the condition": "f = Cast<to = 1>(c) g = Sub(one, f) p = Mul(a, f) q = Mul(g, b) y = Add(p, q)",
    "a number": f"{_CASTS} p = Mul(a, f) q = Mul(low, g) y = Add(p, q)",
    "constants": "p = Mul(a, m) y = Add(p, l)",
    "constants of more dims": "p = Mul(a, m) y = Add(p, v)",
}
SUMS = {
    "another condition": f"{_CASTS} d = Not(e) g2 = Cast<to = 1>(d) p = Mul(a, f) q = Mul(b, g2) y = Add(p, q)",
    "two less the condition": "f = Cast<to = 1>(c) g = Sub(two, f) p = Mul(a, f) q = Mul(g, b) y = Add(p, q)",
    "both where it holds": f"{_CASTS} f2 = Cast<to = 1>(c) p = Mul(a, f) q = Mul(b, f2) y = Add(p, q)",
    "a condition of numbers": "i = Cast<to = 6>(a) f = Cast<to = 1>(i) g = Sub(one, f) p = Mul(a, f) q = Mul(g, b) "
                              "y = Add(p, q)",
    "other factors": "p = Mul(a, h) y = Add(p, l)",
    "more is added": "p = Mul(a, m) y = Add(p, k)",
    "nothing is added": "p = Mul(a, m) y = Add(p, z)",
    "several numbers": "p = Mul(a, m) y = Add(p, w)",
}  # fmt: skip


def _applied(body: str) -> tuple[ir.Model, ir.Model, int]:
    model = graph("bool[2, 3] c, bool[2, 3] e, float[2, 3] a, float[2, 3] b", "float[] y", body, constants=_CONSTANTS)
    OperandOrderPass()(model)
    knowledge = infer(model)
    knowledge.write()
    found = model.clone()
    return model, found, apply(found, decomposed_choices.RULES[0], Scope(found.graph, infer(found)))


@pytest.mark.parametrize("form", CHOICES)
def test_a_choice(form: str) -> None:
    model, found, count = _applied(CHOICES[form])
    assert count == 1
    assert [node.op_type for node in found.graph if node.op_type != "Constant"] == ["Where"]
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 3)).astype(np.float32) for n in "ab"} | {
        n: rng.random((2, 3)) < 0.5 for n in "ce"
    }
    expected, result = (run(m, feeds)[0] for m in (model, found))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("form", SUMS)
def test_a_sum(form: str) -> None:
    model, found, count = _applied(SUMS[form])
    assert count == 0
    assert [node.op_type for node in found.graph] == [node.op_type for node in model.graph]

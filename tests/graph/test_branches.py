"""Casts of results of If, which move into its branches where nothing else reads them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from tests.support.graphs import graph, run

_IF = (
    "a, b = If(c) <then_branch = t () => (float[n] d, float[n] e) { d = Exp(x) e = Cast<to = 1>(h) }, "
    "else_branch = u () => (float[n] f, float[n] g) { f = Tanh(x) g = Cast<to = 1>(k) }> "
)
_INPUTS = "float[n] x, float16[n] h, float16[n] k, bool c"


def _normalized(outputs: str, body: str) -> ir.Model:
    return normalize.normalize(graph(_INPUTS, outputs, _IF + body)).model


def _casts(model: ir.Model) -> int:
    return sum(node.op_type == "Cast" for node in model.graph.all_nodes())


def test_a_cast_meets_the_one_in_the_branch() -> None:
    model = _normalized("float[n] y, float16[n] z", "y = Neg(a) z = Cast<to = 10>(b)")
    assert _casts(model) == 0
    (branching,) = (node for node in model.graph if node.op_type == "If")
    assert [value.dtype for value in branching.outputs] == [ir.DataType.FLOAT, ir.DataType.FLOAT16]


@pytest.mark.parametrize("taken", [True, False])
def test_equal(taken: bool) -> None:
    body = "y = Neg(a) z = Cast<to = 10>(b) s = Cast<to = 10>(a) r = Exp(s)"
    outputs = "float[n] y, float16[n] z, float16[n] r"
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal(5).astype(np.float32), "c": np.array(taken)}
    feeds |= {name: random.standard_normal(5).astype(np.float16) for name in "hk"}
    expected, found = run(graph(_INPUTS, outputs, _IF + body), feeds), run(_normalized(outputs, body), feeds)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("float[n] a, float16[n] z", "z = Cast<to = 10>(a)"),  # an output reads it too
        ("float[n] y, float16[n] z", "y = Neg(a) z = Cast<to = 10>(a)"),  # another operator
        ("double[n] y, float16[n] z", "y = Cast<to = 11>(a) z = Cast<to = 10>(a)"),  # Casts to others
    ],
)
def test_what_others_read_stays(outputs: str, body: str) -> None:
    (branching,) = (node for node in _normalized(outputs, body).graph if node.op_type == "If")
    assert branching.outputs[0].dtype == ir.DataType.FLOAT

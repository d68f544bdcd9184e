"""Which divisors are known to be sums of exponentials less their maximum."""

from __future__ import annotations

import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate
from tests.support.graphs import graph

X, G, Y = "float[8, 40] x", "float[40] g", "float[8, 40] y"
AXIS = "int64[1] last = {-1}, float two = {2}"
OTHERS = "a = Mul(x, g) m = ReduceMax(a, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)"
SOFTMAX = "m = ReduceMax(@, last) d = Sub(@, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)"


def _text(inputs: str, body: str, dtype: str = "float") -> str:
    inputs, output, constants = (t.replace("float", dtype) for t in (inputs, Y, AXIS))
    model = graph(inputs, output, body, constants=constants)
    kernels = outline(model, fuse(model))
    assert len(kernels) == 1
    return generate.generate(kernels)


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        (X, "y = Softmax(x)"),
        (X, SOFTMAX.replace("@", "x")),
        (f"{X}, {G}", "t = Mul(x, two) a = Add(t, g) " + SOFTMAX.replace("@", "a")),
        (X, "z = Softmax(x) y = Softmax(z)"),
    ],
)
def test_a_softmax_divides_by_its_sum_without_a_branch(inputs: str, body: str) -> None:
    text = _text(inputs, body)
    assert "divide_by_sum(" in text and " div(v" not in text


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        (X, "m = ReduceMax(x, last) d = Sub(x, m) s = ReduceSum(d, last) y = Div(x, s)"),
        (X, "e = Exp(x) s = ReduceSum(e, last) y = Div(e, s)"),
        (f"{X}, {G}", OTHERS),
        (X, "m = ReduceMin(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)"),
    ],
    ids=["no exponentials", "no maximum", "the maximum of others", "the minimum"],
)  # fmt: skip
def test_other_sums_may_be_anything(inputs: str, body: str) -> None:
    assert "divide_by_sum(" not in _text(inputs, body)


def test_doubles_have_divisions_of_their_own() -> None:
    assert "divide_by_sum(" not in _text(X, "y = Softmax(x)", "double")

"""Decomposed activations, Softmax, means and sums become one operator: where, why not, and that results stay."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.decomposed.decomposed_activations import DecomposedGelu, FlatLeakyRelu, OneSided
from onnxopt.graph.rewrite.decomposed.decomposed_reductions import DecomposedSoftmax, MeanBySum
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run, value

_FLOATS = {"float": np.float32, "float16": np.float16}
_GELU = "half = {0.5}, one = {1}, root = {1.4142135}, inverse = {0.70710678}, two = {2}"
_TANH = "half = {0.5}, one = {1}, c = {0.044715}, s = {0.7978846}, three = {3}"
_AXES = "int64[1] last = {-1}, int64[1] third = {2}, int64[1] second = {1}"
_ERFS = ("d = Div(x, root) e = Erf(d)", "d = Mul(inverse, x) e = Erf(d)")
_SHIFTED = "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d)"
_CUBES = (
    "p = Pow(x, three) q = Mul(c, p) r = Add(x, q) t = Mul(s, r) e = Tanh(t)",
    "p0 = Mul(x, x) p = Mul(x, p0) q = Mul(p, c) r = Add(q, x) t = Mul(r, s) e = Tanh(t)",
    "p0 = Mul(x, c) p = Mul(p0, x) q = Add(one, p) r = Mul(x, s) t = Mul(r, q) e = Tanh(t)",
)
_DIVIDED = "p = Pow(x, three) q = Div(p, d) r = Add(x, q) t = Div(r, f) e = Tanh(t)"
_ENDS = (
    "n = Add(e, one) h = Mul(x, half) y = Mul(h, n)",
    "n = Add(one, e) h = Mul(half, x) y = Mul(n, h)",
    "n = Add(e, one) h = Mul(n, half) y = Mul(x, h)",
    "n = Add(e, one) h = Mul(x, n) y = Mul(half, h)",
    "n = Add(e, one) h = Mul(n, x) y = Mul(h, half)",
)
# Body, constants of the model's dtype, and the operators that are left.
APPLIED = {
    **{f"gelu {k}": (f"{a} {b}", _GELU, ["Gelu"]) for k, (a, b) in enumerate(itertools.product(_ERFS, _ENDS))},
    **{f"tanh {k}": (f"{a} {b}", _TANH, ["Gelu"]) for k, (a, b) in enumerate(itertools.product(_CUBES, _ENDS))},
    "tanh, divided": (f"{_DIVIDED} {_ENDS[0]}",
                      "half = {0.5}, one = {1}, d = {22.363860}, f = {1.2533141}, three = {3}", ["Gelu"]),
    "gelu, halved by Div": (f"{_ERFS[0]} n = Add(e, one) h = Mul(x, n) y = Div(h, two)", _GELU, ["Gelu"]),
    "Max": ("y = Max(zero, x)", "zero = {0}", ["Relu"]),
    "LeakyRelu": ("y = LeakyRelu<alpha = 0.0>(x)", "", ["Relu"]),
    "PRelu": ("y = PRelu(x, zero)", "zero = {0}", ["Relu"]),
    "Sub from zero": ("y = Sub(zero, x)", "zero = {0}", ["Neg"]),
    "sigmoid": ("n = Neg(x) e = Exp(n) s = Add(one, e) y = Div(one, s)", "one = {1}", ["Sigmoid"]),
    "sigmoid by Reciprocal": ("n = Mul(x, m) e = Exp(n) s = Add(e, one) y = Reciprocal(s)", "one = {1}, m = {-1}",
                              ["Sigmoid"]),
    "sigmoid by tanh": ("a = Mul(x, half) t = Tanh(a) b = Mul(half, t) y = Add(half, b)", "half = {0.5}", ["Sigmoid"]),
    "sigmoid by tanh + 1": ("a = Mul(x, half) t = Tanh(a) b = Add(one, t) y = Mul(half, b)", "half = {0.5}, one = {1}",
                            ["Sigmoid"]),
    "silu": ("n = Neg(x) e = Exp(n) s = Add(one, e) y = Div(x, s)", "one = {1}", ["Sigmoid", "Mul"]),
    "softmax": (f"{_SHIFTED} s = ReduceSum(e, third) y = Div(e, s)", "", ["Softmax"]),
    "softmax without the maximum": ("e = Exp(x) s = ReduceSum(e, second) y = Div(e, s)", "", ["Softmax"]),
    "softmax by Reciprocal": ("e = Exp(x) s = ReduceSum(e, last) r = Reciprocal(s) y = Mul(r, e)", "", ["Softmax"]),
    "softmax by its logarithm": ("l = LogSoftmax<axis = 1>(x) y = Exp(l)", "", ["Softmax"]),
    "mean": ("s = ReduceSum(x, last) y = Div(s, n)", "n = {6}", ["ReduceMean"]),
    "mean by a factor": ("s = ReduceSum<keepdims = 0>(x, last) y = Mul(n, s)", "n = {0.16666667}", ["ReduceMean"]),
    "mean of squares": ("s = ReduceSumSquare(x, last) y = Div(s, n)", "n = {6}", ["Mul", "ReduceMean"]),
    "sum of three": ("a = Tanh(x) b = Abs(x) y = Sum(a, b, x)", "", ["Tanh", "Abs", "Add", "Add"]),
}  # fmt: skip
STAYS = {
    "LeakyRelu with a slope": ("y = LeakyRelu<alpha = 0.1>(x)", "", ["LeakyRelu"]),
    "Max with another number": ("y = Max(x, c)", "c = {0.5}", ["Max"]),
    "quick gelu": ("d = Mul(x, c) s = Sigmoid(d) y = Mul(x, s)", "c = {1.702}", ["Mul", "Sigmoid", "Mul"]),
    "erf of another scale": (f"d = Div(x, c) e = Erf(d) {_ENDS[0]}", "half = {0.5}, one = {1}, c = {1.5}",
                             ["Div", "Erf", "Add", "Mul", "Mul"]),
    "exp with another sum": ("e = Exp(x) s = ReduceSum(e, last) t = Add(s, c) y = Div(e, t)", "c = {1}",
                             ["Exp", "ReduceSum", "Add", "Div"]),
    "sums of two axes": ("m = ReduceMax(x, second) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)", "",
                         ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div"]),
    "another number of elements": ("s = ReduceSum(x, last) y = Div(s, n)", "n = {7}", ["ReduceSum", "Div"]),
    "an unknown number": ("s = ReduceSum(x, second) y = Div(s, n)", "n = {6}", ["ReduceSum", "Div"]),
}  # fmt: skip


def _model(body: str, constants: str, dtype: str, opset: int = 20) -> ir.Model:
    """constants: "name = {number}, ..", of the dtype of x."""
    numbers = {n: np.array(float(v.strip("{}"))) for n, v in (p.split(" = ") for p in constants.split(", ") if p)}
    inputs = "".join(f", {dtype} {name}" for name in numbers)
    model = graph(f"{dtype}[2, N, 6] x{inputs}", f"{dtype}[] y", body, constants=_AXES, opset=opset)
    hold(model, numbers, _FLOATS[dtype])
    return model


@pytest.mark.parametrize("dtype", _FLOATS)
@pytest.mark.parametrize("name", [*APPLIED, *STAYS])
def test_operators_and_results(name: str, dtype: str, tmp_path: Path) -> None:
    body, constants, left = (APPLIED | STAYS)[name]
    source = _model(body, constants, dtype)
    found = normalize(source.clone()).model
    applied = rewrite(found, tmp_path).applied["decomposed"]
    assert [node.op_type for node in found.graph] == left
    assert bool(applied) == (name in APPLIED and name != "Sub from zero")
    x = (np.random.default_rng(0).standard_normal((2, 5, 6)) * 2).astype(_FLOATS[dtype])
    x.flat[:4] = (0, -20, 20, 60)
    tolerance = 2e-6 if dtype == "float" else 4e-3
    with np.errstate(all="ignore"):
        (expected,), (result,) = run(source, {"x": x}), run(found, {"x": x})
    known = np.isfinite(expected)  # x^3 and exp(x) of 16 bits may be infinite, where the operator is right
    assert known.mean() > 0.8
    np.testing.assert_allclose(result[known], expected[known], rtol=tolerance, atol=tolerance)
    assert np.isfinite(result).all()


@pytest.mark.parametrize("op_type", ["Max(x, zero)", "LeakyRelu<alpha = 0.0>(x)", "PRelu(x, zero)"])
def test_relu_of_special_numbers(op_type: str, tmp_path: Path) -> None:
    """NaN stays NaN, infinity stays, and -inf gives 0: where LeakyRelu and PRelu multiply it by 0, Relu is right."""
    found = normalize(_model(f"y = {op_type}", "zero = {0}", "float")).model
    rewrite(found, tmp_path)
    x = np.zeros((2, 5, 6), np.float32)
    x.flat[:3] = (np.nan, np.inf, -np.inf)
    (result,) = run(found, {"x": x})
    np.testing.assert_array_equal(result.flat[:3], [np.nan, np.inf, 0])


def test_softmax_is_right_where_exp_is_infinite(tmp_path: Path) -> None:
    found = normalize(_model("e = Exp(x) s = ReduceSum(e, last) y = Div(e, s)", "", "float")).model
    rewrite(found, tmp_path)
    x = np.full((2, 5, 6), 200, np.float32)
    np.testing.assert_allclose(run(found, {"x": x})[0], 1 / 6, rtol=1e-6)


def test_a_sum_that_is_there_already_is_read(tmp_path: Path) -> None:
    found = normalize(_model("t = Tanh(x) a = Add(x, t) b = Exp(a) y = Sum(x, t, b)", "", "float")).model
    rewrite(found, tmp_path)
    assert [node.op_type for node in found.graph] == ["Tanh", "Add", "Exp", "Add"]


@pytest.mark.parametrize(
    ("rule", "body", "constants", "names", "reason"),
    [
        (OneSided("Max"), "y = Max(x, c)", "c = {0.5}", {"zero": "c"}, "`c` is not the constant 0"),
        (FlatLeakyRelu(), "y = LeakyRelu(x)", "", {"y": "y"}, "the slope of LeakyRelu is 0.01"),
        (DecomposedGelu("half of x", False), "y = Mul(x, c)", "c = {0.6}", {"half": "c"}, "not the constant 0.5"),
        (MeanBySum("Div", False), "s = ReduceSum(x, last) y = Div(s, c)", "c = {7}", {"total": "s", "count": "c"},
         "not its number of elements, 6"),
        (DecomposedSoftmax("div"), "s = ReduceSum<keepdims = 0>(x, last) y = Abs(s)", "", {"total": "s"},
         "not of one constant axis with keepdims"),
    ],
)  # fmt: skip
def test_reasons(rule: Any, body: str, constants: str, names: dict[str, str], reason: str) -> None:
    model = _model(body, constants, "float")
    infer(model).write()
    context = type("Context", (), {"model": model})()
    more = {"shifted": False} if isinstance(rule, DecomposedSoftmax) else {}
    values = {name: value(model, of) for name, of in names.items()}
    assert reason in rule.check(context, x=value(model, "x"), **values, **more).reason


def test_gelu_takes_its_opset(tmp_path: Path) -> None:
    model = _model(f"{_ERFS[0]} {_ENDS[0]}", _GELU, "float", opset=18)
    infer(model).write()
    rewrite(model, tmp_path)
    assert "Gelu" not in [node.op_type for node in model.graph]

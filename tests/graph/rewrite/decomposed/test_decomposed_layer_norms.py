"""LayerNormalization in elementary operators: which forms become the operator, what stays, and that results stay."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import MatchContext

from onnxopt.graph import normalize, rewrite
from onnxopt.graph.rewrite.decomposed import decomposed_layer_norms
from tests.support.graphs import graph, node, run, value

_CONSTANTS = (
    "float two = {2.0}, float three = {3.0}, float half = {0.5}, float one = {1.0}, float minus = {-0.5}, "
    "float eps = {1e-5}, int64[1] last = {-1}, int64[1] axis = {2}, int64[1] first = {1}, "
    "float[4] w = {1, 2, 3, 4}, float[4] b = {5, 6, 7, 8}, float[1, 1, 4] b3 = {5, 6, 7, 8}, "
    "float[3, 1] rows = {1, 2, 3}"
)
_SQUARES = ("p = Pow(d, two)", "p = Mul(d, d)")
_ROOTS = (
    "r = Sqrt(s) n = Div(d, r)",
    "r = Pow(s, half) n = Div(d, r)",
    "r = Sqrt(s) i = Reciprocal(r) n = Mul(i, d)",
    "r = Sqrt(s) i = Div(one, r) n = Mul(d, i)",
    "r = Pow(s, minus) n = Mul(d, r)",
)
_ENDS = ("q = Mul(n, w) y = Add(q, b)", "q = Mul(w, n) y = Add(b3, q)", "y = Mul(n, w)", "y = Identity(n)")
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def norm(
    *, square: str = _SQUARES[0], mean: str = "m = ReduceMean(x, last)", shifted: str = "s = Add(v, eps)",
    root: str = _ROOTS[0], end: str = _ENDS[0], dims: str = "N, 3, 4", outputs: str = "",
) -> ir.Model:  # fmt: skip
    """A normalized graph of a norm with these lines."""
    body = f"{mean} d = Sub(x, m) {square} v = ReduceMean(p, axis) {shifted} {root} {end}"
    source = graph(f"float[{dims}] x", f"float[N, 3, 4] y{outputs}", body, constants=_CONSTANTS)
    return normalize.normalize(source).model


def prepared(source: ir.Model) -> ir.Model:
    """What becomes of it, whose results are as before."""
    copy = source.clone()
    rewrite.prepare_float32(copy)
    for one, other in zip(run(copy, {"x": X}), run(source, {"x": X}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert [v.name for v in copy.graph.outputs] == [v.name for v in source.graph.outputs]
    return copy


@pytest.mark.parametrize("square", _SQUARES)
@pytest.mark.parametrize("root", _ROOTS)
@pytest.mark.parametrize("shifted", ["s = Add(v, eps)", "s = Add(eps, v)"])
def test_each_form_of_the_deviation_is_one_operator(square: str, root: str, shifted: str) -> None:
    (only,) = prepared(norm(square=square, root=root, shifted=shifted)).graph
    assert (only.op_type, len(only.inputs)) == ("LayerNormalization", 3)
    assert only.attributes.get_float("epsilon", 0.0) == np.float32(1e-5)
    assert only.attributes.get_int("axis", 0) == -1


@pytest.mark.parametrize(("end", "operands"), [*zip(_ENDS, (3, 3, 2, 2), strict=True)])
def test_scale_and_bias_are_operands_of_the_norm(end: str, operands: int) -> None:
    (only,) = prepared(norm(end=end)).graph
    assert (only.op_type, len(only.inputs)) == ("LayerNormalization", operands)
    assert all(v is not None and v.shape is not None and len(v.shape) == 1 for v in only.inputs[1:])


@pytest.mark.parametrize("end", ["q = Mul(n, rows) y = Add(q, b)", "y = Tanh(n)", "q = Mul(n, n) y = Mul(q, w)"])
def test_what_is_no_operand_stays_behind_the_norm(end: str) -> None:
    first, *others = prepared(norm(end=end)).graph
    assert (first.op_type, len(first.inputs)) == ("LayerNormalization", 2)
    assert "LayerNormalization" not in {n.op_type for n in others}


@pytest.mark.parametrize(
    "changed",
    [
        {"mean": "m = ReduceMean(x, first)"},
        {"square": "p = Pow(d, three)"},
        {"shifted": "s = Add(v, x)"},
        {"shifted": "s = Add(v, eps)", "root": "r = Pow(s, three) n = Div(d, r)"},
        {"outputs": ", float[N, 3, 1] v"},
    ],
    ids=["axes", "power", "epsilon", "root", "read"],
)
def test_other_computations_stay(changed: dict[str, str]) -> None:
    source = norm(**changed)
    found = source.clone()
    rewrite.prepare_float32(found)
    assert [n.op_type for n in found.graph] == [n.op_type for n in source.graph]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mean": "m = ReduceMean(x, first)"}, "`m` is not the mean of the last axis alone, of one element"),
        ({"square": "p = Pow(d, three)"}, "`three` is not 2"),
        ({"root": "r = Pow(s, three) n = Div(d, r)"}, "`three` is not 0.5"),
        ({"dims": "N, 3, D"}, "`x` is not float32, or the size of its last axis is not known"),
    ],
)
def test_a_refusal_says_why(changed: dict[str, str], reason: str) -> None:
    source = norm(**changed)
    names = ("x", "m", "v")
    x, mean_first, mean_second = (value(source, name) for name in names)
    rule = decomposed_layer_norms._Core("Div", True)
    constants = {"two": node(source, "p").inputs[1], "half": (*node(source, "r").inputs, None)[1]}
    found = rule.check(
        mock.create_autospec(MatchContext),
        x=x, epsilon=value(source, "eps"), mean_first=mean_first, mean_second=mean_second, **constants,
    )  # fmt: skip
    assert (bool(found), found.reason) == (False, reason)


def test_the_scale_of_a_norm_that_stays_has_a_dim_of_one() -> None:
    found = prepared(norm(dims="N, 3, D"))
    assert [n.op_type for n in found.graph].count("LayerNormalization") == 0
    (scale,) = [
        v for n in found.graph if n.op_type == "Mul" for v in n.inputs if v is not None and v.producer() is None
    ]
    assert scale.shape == ir.Shape([1, 4])
    text = "p = Mul(x, x) v = ReduceMean(p, last) s = Add(v, eps) r = Sqrt(s) n = Div(x, r) y = Mul(n, w)"
    rms = normalize.normalize(graph("float[N, 3, 4] x", "float[N, 3, 4] y", text, constants=_CONSTANTS)).model
    assert value(prepared(rms), "w").shape == ir.Shape([4])

"""Equal forms become one: where each rule applies, where it refuses and why, and that no bit of a result changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRuleSet

from onnxopt.graph.normalize import normalize
from onnxopt.graph.passes import equal_forms
from onnxopt.graph.passes.equal_forms import CastOfFilled, ComputedWide, ExactQuotient, SubtractedConstant
from onnxopt.graph.passes.equal_views import NeighbouringPositions, ReducedOnes, ViewOfView
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run, value

_X, _WIDE = "float[N, 4] x", "float16[N, 4] x"
_VECTOR = "float[4] v = {1, -2, 0.5, 3}"
_ONES = "float[1, 1, 4] v = {1, -2, 0.5, 3}"
_AXES = "int64[1] first = {0}, int64[1] last = {-1}, int64[1] two = {2}"
# Inputs, body, constants, and the operators that are left.
APPLIED = {
    "Sum of one": (_X, "a = Sum(x) y = Tanh(a)", "", ["Tanh"]),
    "Sum of two": (_X, "a = Tanh(x) y = Sum(a, x)", "", ["Tanh", "Add"]),
    "Sub of a constant": (_X, "y = Sub(x, v)", _VECTOR, ["Add"]),
    "Sub of a negative": (_X, "a = Tanh(x) b = Neg(a) y = Sub(x, b)", "", ["Tanh", "Add"]),
    "Add of a negative": (_X, "a = Tanh(x) b = Neg(a) y = Add(x, b)", "", ["Tanh", "Sub"]),
    "Add to a negative": (_X, "a = Tanh(x) b = Neg(a) y = Add(b, x)", "", ["Tanh", "Sub"]),
    "Mul by -1": (_X, "y = Mul(m, x)", "float m = {-1}", ["Neg"]),
    "Div by powers of two": (_X, "y = Div(x, m)", "float[4] m = {2, -8, 0.25, 1}", ["Mul"]),
    "Div of 1": (_X, "y = Div(m, x)", "float m = {1}", ["Reciprocal"]),
    "constant first": (_X, "y = Max(v, x)", _VECTOR, ["Max"]),
    "leading dims of 1": ("float[2, N, 4] x", "y = Add(v, x)", _ONES, ["Add"]),
    "computed wide": (
        _WIDE, "a = Cast<to = 1>(x) b = Mul(a, m) c = Cast<to = 10>(b) d = Cast<to = 1>(c) e = Add(d, a) "
        "y = Cast<to = 10>(e)", "float m = {0.75}", ["Mul", "Add"],
    ),
    "kept dims": (_X, "a = ReduceMean<keepdims = 0>(x, last) y = Unsqueeze(a, last)", _AXES, ["ReduceMean"]),
    "mean over one": ("float[N, 1, 4] x", "a = ReduceMean(x, k) b = Squeeze(a, k) y = Abs(b)", "int64[1] k = {-2}",
                      ["Squeeze", "Abs"]),
    "maximum over one without it": ("float[N, 1, 4] x", "a = Tanh(x) b = ReduceMax<keepdims = 0>(a, k) y = Abs(b)",
                                    "int64[1] k = {1}", ["Tanh", "Squeeze", "Abs"]),
    "pool of one": ("float[N, 4, 1, 1] x", "a = Tanh(x) b = GlobalAveragePool(a) y = Abs(b)", "", ["Tanh", "Abs"]),
    "Squeeze of Unsqueeze": (_X, "a = Tanh(x) b = Unsqueeze(a, first) c = Squeeze(b, first) y = Abs(c)", _AXES,
                             ["Tanh", "Abs"]),
    "Unsqueeze of Squeeze": ("float[N, 1, 4] x", "a = Squeeze(x, one) b = Unsqueeze(a, one) y = Abs(b)",
                             "int64[1] one = {1}", ["Abs"]),
    "Reshape and back": (_X, "a = Reshape(x, flat) s = Shape(x) b = Reshape(a, s) y = Abs(b)", "int64[1] flat = {-1}",
                         ["Abs"]),
    "Reshape of Unsqueeze": (_X, "a = Unsqueeze(x, first) y = Reshape(a, four)",
                             f"{_AXES}, int64[3] four = {{-1, 2, 2}}", ["Reshape"]),
    "Reshape to computed dims of Reshape": (
        _X, "s = Shape(x) d = Concat<axis = 0>(first, s) n = Slice(s, first, one, first) e = Concat<axis = 0>(n, one, "
        "four) a = Tanh(x) b = Reshape(a, flat) y = Reshape(b, e)",
        "int64[1] flat = {-1}, int64[1] first = {0}, int64[1] one = {1}, int64[1] four = {4}", ["Tanh", "Reshape"],
    ),
    "positions that count up": (_X, "y = Gather<axis = 1>(x, k)", "int64[2] k = {1, 2}", ["Slice"]),
    "positions from the end": (_X, "y = Gather<axis = -1>(x, k)", "int64[2] k = {-2, -1}", ["Slice"]),
    "bounds from the end": (_X, "y = Slice(x, b, e, last)", f"{_AXES}, int64[1] b = {{-3}}, int64[1] e = {{-1}}",
                            ["Slice"]),
    "Tile of ones": ("float[N, 1, 4] x", "y = Tile(x, k)", "int64[3] k = {1, 3, 1}", ["Expand"]),
    "Concat of ones": ("float[N, 1, 4] x", "y = Concat<axis = 1>(x, x)", "", ["Expand"]),
    **{
        f"{op_type} of flat rows": ("float[B, N, 4] x", f"r = Flatten<axis = 2>(x) w = {op_type}<axis = {axis}>(r) "
                                    "s = Shape(x) y = Reshape(w, s)", "", [op_type])
        for op_type, axis in (("Softmax", -1), ("LogSoftmax", 1), ("Hardmax", -1))
    },
    "Transpose of added dims": (
        "float[B, 3, 4] x", "u = Unsqueeze(x, added) t = Transpose<perm = [4, 0, 3, 1, 2]>(u) y = Reshape(t, flat)",
        "int64[2] added = {-2, 1}, int64[2] flat = {4, -1}", ["Transpose", "Reshape"],
    ),
    "Shape of a Cast": (_X, "c = Cast<to = 10>(x) s = Shape<start = 0, end = 1>(c) y = Expand(one, s)",
                        "float[1] one = {2}", ["Shape", "Expand"]),
    "Cast of one number": (_X, "s = Shape(x) f = ConstantOfShape<value = float[1] {0.1}>(s) y = Cast<to = 10>(f)", "",
                           ["Shape", "ConstantOfShape"]),
    "Cast of zeros": (_WIDE, "s = Shape(x) f = ConstantOfShape(s) y = Cast<to = 10>(f)", "",
                      ["Shape", "ConstantOfShape"]),
    "Cast of an overflow": (_WIDE, "s = Shape(x) f = ConstantOfShape<value = float[1] {1e6}>(s) y = Cast<to = 10>(f)",
                            "", ["Shape", "ConstantOfShape"]),
    "Softmax of reshaped rows": ("float[2, 3, 4] x", "r = Reshape(x, flat) w = Softmax(r) y = Reshape(w, back)",
                                 "int64[2] flat = {6, 4}, int64[3] back = {2, 3, 4}", ["Softmax"]),
}  # fmt: skip
STAYS = {
    "Sum of three": (_X, "a = Tanh(x) b = Abs(x) y = Sum(a, b, x)", "", ["Tanh", "Abs", "Sum"]),
    "Div by three": (_X, "y = Div(x, m)", "float m = {3}", ["Div"]),
    "integers": ("int64[N] x", "y = Sub(x, m)", "int64 m = {2}", ["Sub"]),
    "dims that a constant adds": ("float[4] x", "y = Add(x, v)", _ONES, ["Add"]),
    "two roundings": (_WIDE, "a = Cast<to = 1>(x) b = Mul(a, a) c = Add(b, a) y = Cast<to = 10>(c)", "",
                      ["Cast", "Mul", "Add", "Cast"]),
    "a constant that 16 bits do not hold": (_WIDE, "a = Cast<to = 1>(x) b = Mul(a, m) y = Cast<to = 10>(b)",
                                            "float m = {0.1}", ["Cast", "Mul", "Cast"]),
    "Squeeze that checks a dim": (_X, "a = Squeeze(x, first) y = Unsqueeze(a, first)", _AXES,
                                  ["Squeeze", "Unsqueeze"]),
    "positions that skip": (_X, "y = Gather<axis = 1>(x, k)", "int64[2] k = {0, 2}", ["Gather"]),
    "positions that wrap": (_X, "y = Gather<axis = 1>(x, k)", "int64[2] k = {3, 0}", ["Gather"]),
    "positions of an unknown dim": (_X, "y = Gather(x, k)", "int64[2] k = {0, 1}", ["Gather"]),
    "added dims that another node reads": (
        "float[B, 3, 4] x", "u = Unsqueeze(x, two) t = Transpose<perm = [0, 2, 3, 1]>(u) r = Reshape(t, flat) "
        "m = ReduceMax<keepdims = 0>(t) y = Add(r, m)", "int64[1] two = {2}, int64[1] flat = {-1}",
        ["Unsqueeze", "Transpose", "Reshape", "ReduceMax", "Add"],
    ),
    "Softmax of other rows": ("float[B, N, 4] x", "r = Flatten<axis = 1>(x) w = Softmax(r) s = Shape(x) "
                              "y = Reshape(w, s)", "", ["Flatten", "Softmax", "Reshape"]),
    "Softmax of columns": ("float[B, N, 4] x", "r = Flatten<axis = 2>(x) w = Softmax<axis = 0>(r) s = Shape(x) "
                           "y = Reshape(w, s)", "", ["Flatten", "Softmax", "Shape", "Reshape"]),
    "rows that another node reads": ("float[2, 3, 4] x", "r = Flatten<axis = 2>(x) w = Softmax(r) v = Abs(w) "
                                     "z = Reshape(w, s) u = Reshape(v, s) y = Add(z, u)", "int64[3] s = {2, 3, 4}",
                                     ["Flatten", "Softmax", "Abs", "Reshape", "Reshape", "Add"]),
    "sum over more than ones": (_X, "y = ReduceSum(x, two)", "int64[2] two = {0, 1}", ["ReduceSum"]),
    "Tile of more than ones": (_X, "y = Tile(x, k)", "int64[2] k = {1, 2}", ["Tile"]),
    "Cast of one number to integers": (
        _X, "s = Shape(x) f = ConstantOfShape<value = float[1] {2.5}>(s) i = Cast<to = 7>(f) y = Abs(i)", "",
        ["Shape", "ConstantOfShape", "Cast", "Abs"],
    ),
    "one number that another node reads": (
        _X, "s = Shape(x) f = ConstantOfShape<value = float[1] {0.1}>(s) h = Cast<to = 10>(f) g = Cast<to = 1>(h) "
        "y = Sub(f, g)", "", ["Shape", "ConstantOfShape", "Cast", "Cast", "Sub"],
    ),
}  # fmt: skip
# Dtypes of results that are not those of the operand.
RESULTS = {"Cast of one number": "float16", "Cast of one number to integers": "int64"}
_SPECIAL = (0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 3e-7)


def _feeds(model: ir.Model) -> dict[str, np.ndarray]:
    x = model.graph.inputs[0]
    assert x.dtype is not None and x.shape is not None
    shape = [dim if isinstance(dim, int) else 3 for dim in x.shape]
    drawn = np.random.default_rng(0).standard_normal(shape) * 3
    if x.dtype.is_floating_point():
        drawn.flat[: len(_SPECIAL)] = _SPECIAL[: drawn.size]
    return {"x": drawn.astype(x.dtype.numpy())}


@pytest.mark.parametrize("name", [*APPLIED, *STAYS])
def test_operators_and_bits(name: str) -> None:
    inputs, body, constants, left = (APPLIED | STAYS)[name]
    source = graph(inputs, f"{RESULTS.get(name, inputs.split('[')[0])}[] y", body, constants=constants)
    found = normalize(source.clone()).model
    assert [node.op_type for node in found.graph] == left
    feeds = _feeds(source)
    if name == "Squeeze that checks a dim":
        feeds["x"] = feeds["x"][:1]
    (expected,), (result,) = run(source, feeds), run(found, feeds)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
    if result.dtype.kind == "f":
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(
    ("dims", "axis", "left"),
    [
        ("B, 2, N, N", "<axis = 3>", 1),
        ("B, 2, N, N", "<axis = -1>", 1),
        ("B, 4", "", 1),
        ("B, 2, N, 3", "<axis = 1>", 3),
        ("B, 2, N, 3", "", 3),
    ],
)
def test_opset_11(op_type: str, dims: str, axis: str, left: int) -> None:
    source = graph(f"float[{dims}] x", "float[] y", f"y = {op_type}{axis}(x)", opset=11)
    found = normalize(source.clone()).model
    assert found.opset_imports[""] == 20
    assert len(list(found.graph)) == left
    np.testing.assert_array_equal(run(found, _feeds(source))[0], run(source, _feeds(source))[0])


@pytest.mark.parametrize(
    ("rule", "inputs", "body", "constants", "names", "reason"),
    [
        (SubtractedConstant(), "int64[N] x", "y = Sub(x, c)", "int64 c = {2}", "xc", "not a constant of floats"),
        (ExactQuotient(), _X, "y = Div(x, c)", "float c = {3}", "xc", "a reciprocal of `c` is not exact"),
        (ExactQuotient(), _X, "y = Div(x, c)", "float c = {0}", "xc", "a reciprocal of `c` is not exact"),
        (ExactQuotient(), _X, "y = Div(x, c)", "float c = {1e-40}", "xc", "is not exact"),
        (ComputedWide(), _WIDE, "a = Cast<to = 1>(x) b = Exp(a) y = Cast<to = 10>(b)", "", "by",
         "not the result of an operator that rounds once"),
        (CastOfFilled(), _X, "n = Shape(x) a = ConstantOfShape(n) i = Cast<to = 7>(a) y = Cast<to = 1>(i)", "", "nai",
         "not one of floats of 16 bits or more"),
        (NeighbouringPositions("p"), _X, "y = Gather<axis = 1>(x, c)", "int64[2] c = {2, 1}", "xcy", "do not count up"),
        (ReducedOnes("ReduceSum"), "float[N, M] x", "y = ReduceSum(x, c)", "int64[1] c = {1}", "xy", "may not be 1"),
        (ViewOfView("Unsqueeze", "Squeeze"), _X, "v = Squeeze(x, z) y = Unsqueeze(v, z)", "int64[1] z = {0}", "xvy",
         "Squeeze checks that a dim is 1"),
    ],
)  # fmt: skip
def test_reasons(rule: Any, inputs: str, body: str, constants: str, names: str, reason: str) -> None:
    model = graph(inputs, "float[] y", body, constants=constants)
    infer(model).write()
    parts = {name: value(model, name) for name in names}
    if names == "by":
        parts = {"x": parts["b"], "y": parts["y"]}
    elif names == "nai":
        parts |= {"x": parts.pop("a"), "y": parts.pop("i")}
    elif names == "xcy":
        parts["positions"] = parts.pop("c")
    elif names == "xvy":
        parts["view"] = parts.pop("v")
    assert reason in rule.check(None, **parts).reason


def test_rules_of_operators_that_no_node_has_are_not_made() -> None:
    rules = equal_forms.rooted()
    model = graph("float[3] x, float[3] z", "float[3] y", "a = Sub(x, z)  y = Tanh(a)")
    RewriteRuleSet(rules).apply_to_model(model)  # type: ignore[arg-type]
    assert {rule.op_type for rule in rules if "_rule" in vars(rule)} == {"Sub"}


@pytest.mark.parametrize(
    ("x", "at", "sizes", "expected"),
    [
        ("batch, 2, 1, n, 8", 3, "b, two, three, s, eight", [1, 1, 3, 1, 1]),
        ("batch, 1, n", 2, "b, two, s", [1, 2, 1]),
        ("2, n", 1, "three, two, s", [3, 1, 1]),
    ],
)
def test_a_computed_shape_that_repeats_dims_of_one(x: str, at: int, sizes: str, expected: list[int]) -> None:
    numbers = {"two": 2, "three": 3, "eight": 8}
    constants = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in numbers.items())
    body = (
        f"b = Shape <start = 0, end = 1> (x) s = Shape <start = {at}, end = {at + 1}> (x) "
        f"to = Concat <axis = 0> ({sizes}) e = Expand (x, to) y = Softmax <axis = 0> (e)"
    )
    dims = ", ".join(f"d{k}" for k in range(len(sizes.split(","))))
    normalized = normalize(graph(f"float[{x}] x", f"float[{dims}] y", body, constants=constants)).model
    (expand,) = [node for node in normalized.graph if node.op_type == "Expand"]
    assert expand.inputs[1].const_value.numpy().tolist() == expected


def test_a_computed_shape_that_repeats_a_dynamic_number_stays() -> None:
    body = "s = Shape (m) e = Expand (x, s) y = Softmax <axis = 0> (e)"
    model = normalize(graph("float[1, 8] x, float[n, 8] m", "float[n, 8] y", body)).model
    (expand,) = [node for node in model.graph if node.op_type == "Expand"]
    assert expand.inputs[1].const_value is None

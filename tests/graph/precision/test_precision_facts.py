"""What a graph says of its values at any input and size, and what therefore stays float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize, precision
from onnxopt.graph.precision import operators
from onnxopt.verification.lowering import ranges
from tests.graph.precision.test_precision import FLOAT, HALF, Feeds, dtypes, lowered, sqnr, x
from tests.support.graphs import graph, run, value

_POWERS = "h = MatMul(x, w)  p = Mul(h, h)  q = MatMul(p, u)  "
_W = "float[8, 8] w = {" + ", ".join(map(str, np.random.default_rng(1).standard_normal(64).astype(np.float32))) + "}"
_U = "float[8, 8] u = {" + ", ".join(["0.5"] * 64) + "}"
_CONSTANTS = (
    f"{_W}, {_U}, float low = {{1e-10}}, float[1, 1] low2 = {{1e-10}}, float half = {{-0.5}}, float one = {{1.0}}, "
    "int64[1] first = {0}, int64[1] second = {1}, int64[1] last = {-1}, float zero = {0.0}, float slope = {0.5}, "
    "float hide = {-3.4028235e38}, int64 start = {0}, int64 step = {1}, "
    "float[1, 4] freq = {1.0, 0.1, 0.01, 0.001}"
)


def _graph(inputs: str, outputs: str, body: str) -> ir.Model:
    return graph(inputs, outputs, body, constants=_CONSTANTS)


@pytest.mark.parametrize(
    "guard",
    [
        "c = Clip(q, low)  y = Log(c)",
        "c = Max(q, low2)  y = Log(c)",
        "c = Add(low, q)  r = Pow(c, half)  y = Mul(r, q)",
        "c = Add(q, low)  s = Sqrt(c)  r = Reciprocal(s)  y = Mul(q, r)",
        "c = Add(q, low2)  y = Div(q, c)",
        "b = Greater(q, zero)  c = Where(b, q, low)  y = Log(c)",
        "n = ReduceL2(h, last)  c = Add(n, low)  y = Div(h, c)",
        "n = ReduceL2(h, last)  c = Clip(n, low)  r = Reciprocal(c)  y = Mul(h, r)",
    ],
)
def test_guards_that_drawn_inputs_never_reach(tmp_path: Path, guard: str) -> None:
    model = _graph("float[N, 8] x", "float[N, 8] y", _POWERS + guard)
    half, _ = lowered(model.clone(), x(), tmp_path)
    assert dtypes(half, "c") == {FLOAT}
    assert dtypes(half, "h") == {FLOAT if "Log" in guard else HALF}  # quiet beside loud inputs counts, too
    zeros: Feeds = {"x": np.zeros((2, 8), np.float32)}
    expected, found = run(model, zeros)[0], run(half, zeros)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    quiet: Feeds = {"x": 1e-4 * x()["x"]}
    assert sqnr(model, half, quiet) > 45


_ANGLES = "  s = Sin(a)  c = Cos(a)  d = Add(s, c)  g = MatMul(d, d4)  h = MatMul(x, w)  y = Add(h, g)"


@pytest.mark.parametrize(
    "angles",
    [
        "f = Cast<to = 1>(p)  g0 = Unsqueeze(f, second)  a = MatMul(g0, freq)",
        "f = Cast<to = 1>(p)  g0 = Unsqueeze(f, second)  a = Mul(g0, freq)",
        'f = Cast<to = 1>(p)  a = Einsum<equation = "i,oj->ij">(f, freq)',
        "f = Cast<to = 1>(p)  g0 = Unsqueeze(f, second)  g1 = MatMul(g0, freq)  a = Neg(g1)",
    ],
)
def test_angles_of_positions_that_were_not_drawn(tmp_path: Path, angles: str) -> None:
    table = ", float[4, 8] d4 = {" + ", ".join(["0.25"] * 32) + "}"
    model = graph("float[N, 8] x, int64[N] p", "float[N, 8] y", angles + _ANGLES, constants=_CONSTANTS + table)
    feeds = {**x(), "p": np.arange(4)}
    half, _ = lowered(model.clone(), feeds, tmp_path)
    assert dtypes(half, "a") == {FLOAT}
    assert dtypes(half, "h") == {HALF}
    assert sqnr(model, half, {**x(), "p": np.arange(30001, 30005)}) > 50


def test_distances_that_are_added_to_scores_stay_float32(tmp_path: Path) -> None:
    body = (
        "h = MatMul(x, w)  k = Transpose<perm = [1, 0]>(h)  s = MatMul(h, k)  f = Cast<to = 1>(p)  d = Mul(f, slope)  "
        "t = Add(s, d)  m = Softmax(t)  y = MatMul(m, h)"
    )
    model = _graph("float[N, 8] x, int64[N] p", "float[N, 8] y", body)
    half, _ = lowered(model.clone(), {**x(), "p": np.arange(4)}, tmp_path)
    assert dtypes(half, "f", "d", "t") == {FLOAT}
    assert dtypes(half, "h", "s") == {HALF}
    assert sqnr(model, half, {**x(scale=0.3), "p": np.arange(20000, 20004)}) > 45


def test_masks_of_integers_are_no_positions(tmp_path: Path) -> None:
    body = (
        "h = MatMul(x, w)  k = Transpose<perm = [1, 0]>(h)  s = MatMul(h, k)  f = Cast<to = 1>(p)  n = Sub(one, f)  "
        "d = Mul(n, hide)  t = Add(s, d)  m = Softmax(t)  g = MatMul(m, h)  e = Unsqueeze(f, second)  y = Mul(g, e)"
    )
    model = _graph("float[N, 8] x, int64[N] p", "float[N, 8] y", body)
    feeds = {**x(), "p": np.array([1, 1, 1, 0])}
    half, _ = lowered(model.clone(), feeds, tmp_path)
    assert dtypes(half, "h", "s", "t", "m", "g") == {HALF}
    assert sqnr(model, half, feeds) > 45


@pytest.mark.parametrize(
    ("body", "wide"),
    [
        ("h = MatMul(x, w)  a = Abs(h)  t = ReduceSum(a, first)  y = Add(h, t)", "t"),
        ("h = MatMul(x, w)  a = Abs(h)  t = CumSum(a, start)  y = MatMul(t, w)", "t"),
        ("h = MatMul(x, w)  a = Abs(h)  k = Transpose<perm = [1, 0]>(a)  t = MatMul(k, a)  y = MatMul(a, t)", "t"),
    ],
)
def test_sums_over_dynamic_dims_stay_float32(tmp_path: Path, body: str, wide: str) -> None:
    model = _graph("float[N, 8] x", "float[N, 8] y", body)
    half, _ = lowered(model.clone(), x(), tmp_path)
    assert dtypes(half, wide, "y") == {FLOAT}
    assert dtypes(half, "h") == {HALF}
    assert sqnr(model, half, x(40000)) > 45


def test_the_weights_of_softmax_add_up_to_one(tmp_path: Path) -> None:
    body = "h = MatMul(x, w)  k = Transpose<perm = [1, 0]>(h)  s = MatMul(h, k)  m = Softmax(s)  y = MatMul(m, h)"
    _, choice = lowered(_graph("float[N, 8] x", "float[N, 8] y", body), x(), tmp_path)
    assert not choice.kept


@pytest.mark.parametrize(
    ("node", "averaged"),
    [
        ("com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, v)", "v"),
        ("com.microsoft.MultiHeadAttention<num_heads = 2>(x)", "x"),  # of packed queries, keys and values
        ("com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(x, x, v, x, past, n, m)", "v, past"),
        ("Gather<axis = 1>(x, n)", "x"),  # no rows are larger for their number
    ],
)
def test_attention_is_as_large_as_its_values(node: str, averaged: str) -> None:
    model = graph("float[B, N, 8] x, float[B, N, 8] v, float[B, N, 8] past, int32[B] n, int32 m", "y", f"y = {node}")
    found = [value.name for value in operators.averaged(model.graph[-1]) if value is not None]
    assert found == averaged.split(", ")


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_scatter_with_a_reduction_stays_float32(tmp_path: Path, reduction: str) -> None:
    body = f'h = MatMul(x, w)  a = ScatterND<reduction = "{reduction}">(h, i, z)  b = Tanh(a)  y = MatMul(b, w)'
    model = _graph("float[4, 8] x, int64[2, 1] i, float[2, 8] z", "float[4, 8] y", body)
    feeds = {**x(), "i": np.array([[1], [1]]), "z": np.ones((2, 8), np.float32)}
    half, _ = lowered(model.clone(), feeds, tmp_path)
    assert dtypes(half, "a") == {FLOAT}
    assert dtypes(half, "h") == {HALF}
    assert sqnr(model, half, feeds) > 50


def test_onnx_runtime_opens_a_norm_of_float32_rows(tmp_path: Path) -> None:
    body = (
        "h = Relu(x)  m = ReduceMean(h, last)  d = Sub(h, m)  p = Pow(d, two)  v = ReduceMean(p, last)  "
        "e = Add(v, eps)  r = Sqrt(e)  n = Div(d, r)  f = Mul(n, g)  b = Add(f, g)  y = MatMul(b, w)"
    )
    more = ", float two = {2.0}, float eps = {1e-5}, float[8] g = {1.0, 2.0, 0.5, 1.0, 1.5, 1.0, 0.7, 1.0}"
    model = graph("float[N, 8] x", "float[N, 8] y", body, constants=_CONSTANTS + more)
    half, _ = lowered(model.clone(), x(), tmp_path)
    assert dtypes(half, "f") == {FLOAT}
    assert sqnr(model, half, x()) > 50  # ONNX Runtime opens it with all its fusions


def test_a_value_of_unknown_dtype_gets_its_casts(tmp_path: Path) -> None:
    """A MatMul that became 16 bit without a Cast before BiasGelu gave a model that ONNX Runtime did not open."""
    body = "h = MatMul(x, w)  k = com.microsoft.BiasGelu(h, b)  y = MatMul(k, w)"
    more = ", float[8] b = {0.0, 1.0, 0.5, 0.1, 0.2, 0.3, 0.4, 0.6}"
    model = graph("float[N, 8] x", "float[N, 8] y", body, constants=_CONSTANTS + more)
    normalized = normalize.normalize(model.clone()).model
    measured = ranges.measure(normalized, [x()], HALF, tmp_path)
    hidden = value(normalized, "h")
    hidden.type = None  # as of operators that nothing infers
    choice = precision.choose(normalized, measured, HALF)
    assert {row.reason for row in choice.kept if row.op_type == "MatMul"} <= {"The dtype of `h` is not known"}
    precision.convert(normalized, choice)
    assert sqnr(model, normalized, x()) > 50


def test_the_dtypes_of_onnx_runtimes_attention_and_norms_are_known() -> None:
    body = (
        "a = com.microsoft.Attention<num_heads = 2>(x, q, b)  s = com.microsoft.SkipLayerNormalization(a, x, g, g, g)  "
        "y = MatMul(s, w)"
    )
    more = ", float[8, 24] q = {" + ", ".join(["0.1"] * 192) + "}, float[24] b = {" + ", ".join(["0.1"] * 24)
    more += "}, float[8] g = {" + ", ".join(["0.5"] * 8) + "}"
    model = normalize.normalize(graph("float[B, N, 8] x", "float[B, N, 8] y", body, constants=_CONSTANTS + more)).model
    assert dtypes(model, "a", "s") == {FLOAT}


def test_filled_masks_alignments_and_norms_stay_narrow(tmp_path: Path) -> None:
    body = (
        "h = MatMul(x, w)  k = Transpose<perm = [1, 0]>(h)  s = MatMul(h, k)  f = Cast<to = 1>(p)  n = Sub(one, f)  "
        "b = Cast<to = 9>(n)  d = Where(b, hide, n)  t = Add(s, d)  m = Softmax(t)  g = MatMul(m, h)  "
        "q = Unsqueeze(p, second)  e = Equal(p, q)  ef = Cast<to = 1>(e)  y = MatMul(ef, g)"
    )
    feeds = {**x(), "p": np.array([1, 1, 1, 0])}
    half, _ = lowered(_graph("float[N, 8] x, int64[N] p", "float[N, 8] y", body), feeds, tmp_path)
    assert dtypes(half, "h", "s", "t", "m", "g", "ef") == {HALF}


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize(
    "norm",
    [
        "p = Pow(h, two) v = ReduceMean(p, last) s = Add(v, eps) r = Sqrt(s) n = Div(h, r)",
        "p = Mul(h, h) v = ReduceMean(p, last) s = Add(v, eps) r = Sqrt(s) i = Reciprocal(r) n = Mul(h, i)",
        "p = Mul(h, h) v = ReduceMean(p, last) s = Add(v, eps) i = Pow(s, half) n = Mul(i, h)",
        "p = ReduceSumSquare(h, last) v = Mul(p, eighth) s = Add(v, eps) r = Sqrt(s) n = Div(h, r)",
        "p = ReduceL2(h, last) v = Div(p, root) s = Add(v, eps) n = Div(h, s)",
        "p = Mul(h, h) v = ReduceSum(p, last) s = Div(v, eight) t = Max(s, eps) r = Sqrt(t) n = Div(h, r)",
    ],
)
def test_squares_of_a_spelled_norm_without_a_mean_stay_float32(tmp_path: Path, norm: str, opset: int) -> None:
    more = (
        ", float eps = {1e-6}, float eight = {8.0}, float eighth = {0.125}, float root = {2.8284271}, float two = {2.0}"
    )
    gain = ", float[8] gain = {1.0, 2.0, 0.5, 1.0, 1.5, 1.0, 0.7, 1.0}"
    body = f"h = MatMul(x, w) {norm} f = Mul(n, gain) y = MatMul(f, w)"
    model = graph("float[N, 8] x", "float[N, 8] y", body, constants=_CONSTANTS + more + gain, opset=opset)
    half, _ = lowered(model.clone(), x(scale=300.0), tmp_path)
    assert dtypes(half, "p") == {FLOAT}
    assert dtypes(half, "h", "f") == {HALF}
    assert sqnr(model, half, x(scale=300.0)) > 50
    assert sqnr(model, half, x(scale=1e-3)) > 40


def test_the_norm_without_a_mean_as_an_operator_keeps_its_squares(tmp_path: Path) -> None:
    """ONNX's of opset 23, and ONNX Runtime's, which becomes elementary operators around a square in float32."""
    gain = ", float[8] gain = {1.0, 2.0, 0.5, 1.0, 1.5, 1.0, 0.7, 1.0}"
    for norm, opset in (("RMSNormalization<epsilon = 1e-6>", 23), ("SimplifiedLayerNormalization<epsilon = 1e-6>", 18)):
        body = f"h = MatMul(x, w) f = {norm}(h, gain) y = MatMul(f, w)"
        model = graph("float[N, 8] x", "float[N, 8] y", body, constants=_CONSTANTS + gain, opset=opset)
        half, _ = lowered(model.clone(), x(scale=300.0), tmp_path)
        assert dtypes(half, "h") == {HALF}
        assert sqnr(model, half, x(scale=300.0)) > 50

"""Lower precision by structure: what becomes 16 bit, what stays float32, and that results stay near float32's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize, precision
from onnxopt.graph.precision import Choice, Range, range_of
from onnxopt.graph.precision.masks import LOWEST, separate_numbers
from onnxopt.runtime import sessions
from onnxopt.verification.lowering import parts, ranges
from tests.support.graphs import graph, node, run, value

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
_SCALAR = (
    "float e12 = {1e-12}, float two = {2.0}, float zero = {0.0}, float low = {-3.4028235e38}, int64[1] last = {-1}"
)
_WEIGHT = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
_W = f"float[8, 8] w = {{{', '.join(map(str, _WEIGHT.ravel()))}}}"
_CONSTANTS = f"{_SCALAR}, {_W}"
Feeds = dict[str, np.ndarray]


def lowered(
    model: ir.Model, feeds: Feeds, tmp_path: Path, dtype: ir.DataType = HALF, keep_float: str | None = None
) -> tuple[ir.Model, Choice]:
    """The model in lower precision, with the ranges of one run."""
    normalized = normalize.normalize(model).model
    separate_numbers(normalized)
    measured = ranges.measure(normalized, [feeds], dtype, tmp_path)
    choice = precision.choose(normalized, measured, dtype, keep_float=keep_float)
    precision.convert(normalized, choice)
    return normalized, choice


def sqnr(model: ir.Model, other: ir.Model, feeds: Feeds) -> float:
    """Signal to noise in dB of the first output; both must be finite."""
    a, b = run(model, feeds)[0].astype(np.float64), run(other, feeds)[0].astype(np.float64)
    assert a.shape == b.shape
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    return float(20 * np.log10(np.linalg.norm(a) / max(np.linalg.norm(a - b), 1e-30)))


def dtypes(model: ir.Model, *names: str) -> set[ir.DataType | None]:
    return {value(model, name).dtype for name in names}


def x(rows: int = 4, scale: float = 1.0) -> Feeds:
    return {"x": scale * np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)}


_NORM = (
    "h = MatMul(x, w)  m = ReduceMean(h, last)  d = Sub(h, m)  p = Pow(d, two)  v = ReduceMean(p, last)  "
    "s = Add(v, e12)  r = Sqrt(s)  n = Div(d, r)  y = MatMul(n, w)"
)


def test_squares_that_overflow_float16_stay_float32(tmp_path: Path) -> None:
    model, feeds = graph("float[N, 8] x", "float[N, 8] y", _NORM, constants=_CONSTANTS), x(scale=300.0)
    half, _ = lowered(model.clone(), feeds, tmp_path)
    assert np.square(run(model, feeds)[0]).max() < 65504 < np.square(feeds["x"] @ _WEIGHT).max()
    assert dtypes(half, "d", "p", "v", "s", "r") == {FLOAT}
    assert {node(half, "h").outputs[0].dtype, node(half, "y").inputs[0].dtype} == {HALF}  # type: ignore[union-attr]
    assert sqnr(model, half, feeds) > 55


def test_an_epsilon_below_float16_still_keeps_rows_of_zeros_finite(tmp_path: Path) -> None:
    model = graph("float[N, 8] x", "float[N, 8] y", _NORM, constants=_CONSTANTS)
    measured_with, zeros = x(), x()
    half, _ = lowered(model.clone(), measured_with, tmp_path)
    zeros["x"][1:] = 0.0
    assert sqnr(model, half, zeros) > 55


@pytest.mark.parametrize(
    "mask",
    ["m = Where(b, s, low)", "z = Where(b, zero, low)  m = Add(s, z)", "f = Cast<to = 1>(b)  g = Not(b)  "
     "i = Cast<to = 1>(g)  z = Mul(i, low)  m = Add(s, z)"],
    ids=["where", "add", "computed"],
)  # fmt: skip
def test_masks_of_the_lowest_float32_are_clamped(tmp_path: Path, mask: str) -> None:
    body = f"s = MatMul(x, w)  {mask}  p = Softmax<axis = -1>(m)  y = MatMul(p, w)"
    model = graph("float[N, 8] x, bool[N, 8] b", "float[N, 8] y", body, constants=_CONSTANTS)
    feeds = x() | {"b": np.random.default_rng(3).integers(0, 2, (4, 8)).astype(bool)}
    feeds["b"][:, 0] = True
    half, choice = lowered(model.clone(), feeds, tmp_path)
    assert choice.kept == ()
    lowest = [v.const_value.numpy().min() for v in half.graph.initializers.values() if v.const_value is not None]
    assert min(lowest) >= LOWEST
    assert sqnr(model, half, feeds) > 55


def test_a_low_number_that_something_else_reads_hides_scores_all_the_same(tmp_path: Path) -> None:
    body = (
        "s = MatMul(x, w)  m = Where(b, s, low)  p = Softmax<axis = -1>(m)  y = MatMul(p, w)  z = Where(b, zero, low)"
    )
    model = graph("float[N, 8] x, bool[N, 8] b", "float[N, 8] y, float[N, 8] z", body, constants=_CONSTANTS)
    feeds = x() | {"b": np.eye(4, 8, dtype=bool)}
    half, _ = lowered(model.clone(), feeds, tmp_path)
    assert (dtypes(half, "m"), dtypes(half, "z")) == ({HALF}, {FLOAT})
    np.testing.assert_array_equal(run(half, feeds)[1], run(model, feeds)[1])


def test_a_mask_that_is_an_input_is_clamped_where_it_is_stored(tmp_path: Path) -> None:
    body = "s = MatMul(x, w)  m = Add(s, a)  p = Softmax<axis = -1>(m)  y = MatMul(p, w)"
    model = graph("float[N, 8] x, float[N, 8] a", "float[N, 8] y", body, constants=_CONSTANTS)
    feeds = x() | {"a": np.zeros((4, 8), np.float32)}
    half, _ = lowered(model.clone(), feeds, tmp_path)
    feeds["a"][:, 3:] = np.finfo(np.float32).min
    feeds["a"][2, :2] = -np.inf
    assert sqnr(model, half, feeds) > 55
    assert half.graph.inputs[1].dtype == FLOAT


def test_a_value_over_65504_stays_float32_and_its_neighbours_do_not(tmp_path: Path) -> None:
    body = "h = MatMul(x, w)  k = Mul(h, big)  o = MatMul(k, v)  q = Tanh(o)  y = MatMul(q, w)"
    constants = _CONSTANTS + ", float big = {20000.0}, " + _W.replace(" w ", " v ")
    model, feeds = graph("float[N, 8] x", "float[N, 8] y", body, constants=constants), x()
    half, choice = lowered(model.clone(), feeds, tmp_path)
    assert dtypes(half, "k", "o") == {FLOAT}
    assert dtypes(half, "h") == {HALF}
    assert {row.node for row in choice.kept} == {"k", "o", "q"}
    assert any("`k` reaches" in row.reason for row in choice.kept)
    assert sqnr(model, half, feeds) > 50


_BRANCHES = (
    "h = MatMul(x, w)  y = If(c) <then_branch = t () => (float[N, 8] a) {b = MatMul(h, w) m = Mul(b, b) "
    "a = Add(m, x)}, else_branch = f () => (float[N, 8] d) {e = MatMul(h, w) g = Exp(e) d = MatMul(g, w)}>  "
    "z = MatMul(h, w)  q = Add(y, z)"
)


def _branches(tmp_path: Path, taken: tuple[bool, ...]) -> tuple[ir.Model, ir.Model, Choice]:
    """The model, it in lower precision with the ranges of runs that take these branches, and the choice."""
    model = graph("float[N, 8] x, bool c", "float[N, 8] q", _BRANCHES, constants=_CONSTANTS)
    half = normalize.normalize(model.clone()).model
    feeds = [x() | {"c": np.array(one)} for one in taken]
    choice = precision.choose(half, ranges.measure(half, feeds, HALF, tmp_path), HALF)
    precision.convert(half, choice)
    return model, half, choice


def test_branches_of_if_become_16_bits_as_the_main_graph_does(tmp_path: Path) -> None:
    model, half, choice = _branches(tmp_path, (True, False))
    assert {str(n.name) for n in choice.narrow} == {"h", "b", "m", "a", "e", "z"}
    reasons = {row.node: row.reason for row in choice.kept}
    assert reasons["y"] == "If hands on float32"
    assert "exponential" in reasons["g"]
    assert "exponential" in reasons["d"]
    assert dtypes(half, "h", "b", "e") == {HALF}
    for taken in (True, False):
        assert sqnr(model, half, x() | {"c": np.array(taken)}) > 50  # of an exponential


def test_a_branch_that_no_run_took_stays_float32(tmp_path: Path) -> None:
    model, half, choice = _branches(tmp_path, (True,))
    assert {"e", "g", "d"} <= {row.node for row in choice.kept}
    assert {row.reason for row in choice.kept if row.node == "e"} == {"`e` was not measured"}
    for taken in (True, False):
        assert sqnr(model, half, x() | {"c": np.array(taken)}) > 55


def test_values_of_nested_branches_are_measured(tmp_path: Path) -> None:
    body = (
        "y = If(c) <then_branch = t () => (float[N, 8] a) {a = If(k) <then_branch = t2 () => (float[N, 8] i) "
        "{i = MatMul(x, w)}, else_branch = f2 () => (float[N, 8] j) {j = Neg(x)}>}, "
        "else_branch = f () => (float[N, 8] d) {d = Exp(x)}>"
    )
    model = graph("float[N, 8] x, bool c, bool k", "float[N, 8] y", body, constants=_CONSTANTS)
    measured = ranges.measure(model, [x() | {"c": np.array(True), "k": np.array(True)}], HALF, tmp_path)
    assert {"x", "a", "i", "y"} == set(measured)
    assert measured["i"].greatest == pytest.approx(float(np.abs(x()["x"] @ _WEIGHT).max()), rel=1e-5)


def test_values_of_unknown_shapes_are_measured_together_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "v0 = Reshape(x, s)  " + "  ".join(f"v{k + 1} = Sin(v{k})" for k in range(9))
    model = normalize.normalize(graph("float[N, 8] x, int64[2] s", "float[?, ?] v9", body)).model
    monkeypatch.setattr(parts, "_BYTES", 1 << 20)  # 32 kB each, where dims of 1,000 would take 4 MB
    opened = []

    def open_session(path: Path) -> object:
        opened.append(path)
        return sessions_open(path)

    sessions_open = sessions.open_session
    monkeypatch.setattr(sessions, "open_session", open_session)
    feeds = {"x": np.full((1000, 8), 1.5, np.float32), "s": np.array([8, 1000])}
    measured = ranges.measure(model, [feeds], HALF, tmp_path)
    assert set(measured) == {"x", *(f"v{k}" for k in range(10))}
    assert measured["v1"].greatest == pytest.approx(np.sin(1.5))
    assert len(opened) == 2  # for shapes, and for values


def test_bodies_of_loops_read_the_values_around_them_in_16_bits(tmp_path: Path) -> None:
    body = (
        "h = MatMul(x, w)  y = Loop(n, , x) <body = l (int64 i, bool ci, float[N, 8] s) => (bool co, float[N, 8] a) "
        "{co = Identity(ci) b = MatMul(h, w) t = Softmax(s) c = MatMul(t, w) a = Add(b, c)}>"
    )
    model = graph("float[N, 8] x, int64 n", "float[N, 8] y", body, constants=_CONSTANTS)
    feeds = x() | {"n": np.array(2)}
    half, kept = lowered(model.clone(), feeds, tmp_path)
    assert [(row.op_type, row.reason) for row in kept.kept] == [("Loop", "Loop hands on float32")]
    assert node(half, "b").inputs[0] is value(half, "h")  # no Cast in a step
    assert sqnr(model, half, feeds) > 55


def test_the_interface_keeps_names_and_dtypes(tmp_path: Path) -> None:
    body = "y = MatMul(x, w)  z = Relu(y)  u = Identity(x)"
    model = graph("float[N, 8] x", "float[N, 8] y, float[N, 8] z, float[N, 8] u", body, constants=_CONSTANTS)
    half, _ = lowered(model.clone(), x(), tmp_path)
    assert [(v.name, v.dtype) for v in half.graph.outputs] == [("y", FLOAT), ("z", FLOAT), ("u", FLOAT)]
    assert [(v.name, v.dtype) for v in half.graph.inputs] == [("x", FLOAT)]
    for expected, actual in zip(run(model, x()), run(half, x()), strict=True):
        np.testing.assert_allclose(actual, expected, atol=0.02)


def test_keep_float_names_nodes(tmp_path: Path) -> None:
    model = graph(
        "float[N, 8] x", "float[N, 8] y", "head1 = MatMul(x, w)  k = Relu(head1)  y = MatMul(k, w)",
        constants=_CONSTANTS,
    )  # fmt: skip
    half, choice = lowered(model, x(), tmp_path, keep_float="^head")
    assert [(row.node, row.reason) for row in choice.kept] == [("head1", "--keep-float names it")]
    assert node(half, "head1").inputs[1].dtype == FLOAT  # type: ignore[union-attr]


def test_angles_and_orders_are_computed_in_float32(tmp_path: Path) -> None:
    body = "h = MatMul(x, w)  a = Mul(h, big)  s = Sin(a)  y = MatMul(s, w)  t, i = TopK(y, last1)"
    model = graph(
        "float[N, 8] x", "float[N, 8] y, float[N, M] t, int64[N, M] i", body,
        constants=_CONSTANTS + ", float big = {100.0}, int64[1] last1 = {1}",
    )  # fmt: skip
    half, choice = lowered(model.clone(), x(), tmp_path)
    assert dtypes(half, "a", "s", "t") == {FLOAT}
    assert {row.op_type for row in choice.kept} == {"MatMul", "Mul", "Sin", "TopK"}  # the product of inputs


def test_an_operator_without_the_dtype_in_its_definition_stays_float32(tmp_path: Path) -> None:
    body = "c = Conv(x, w)  y = Mish(c)"
    model = graph("float[N, 2, 4, 4] x", "float[N, 2, 4, 4] y", body, constants="float[2, 2, 1, 1] w = {1, 2, 3, 4}")
    feeds = {"x": np.ones((1, 2, 4, 4), np.float32)}
    _, choice = lowered(model, feeds, tmp_path, ir.DataType.BFLOAT16)  # opset 20
    assert [row.reason for row in choice.kept] == [
        f"{op} is not defined for bfloat16 in this opset" for op in ("Conv", "Mish")
    ]


def test_ranges() -> None:
    array = np.float32([np.nan, -np.inf, -3e38, 0.0, 2.0, -1e-7])
    found = range_of(array, HALF)
    assert (found.greatest, found.shown, found.lowest) == (np.float32(3e38), 2.0, np.float32(-3e38))
    assert found.smallest == np.float32(1e-7)
    assert found.loss < 1e-4
    assert range_of(np.full(10, 3e-8, np.float32), HALF).loss > 0.5
    assert range_of(np.zeros((0, 3), np.float32), HALF) == range_of(np.float32([np.nan]), HALF)
    assert found.typical == pytest.approx(2.0 / 3)
    assert found.usual == found.typical
    other = Range(4e38, 5.0, -4e38, 1e-8, 0.5, 0.1, 7.0, 3.0)
    assert found.merged(other) == other
    rows = np.float32([[100.0, 101.0], [-100.0, -101.0]])
    assert range_of(rows, HALF).offset == pytest.approx(201.0, rel=1e-4)  # the mean of each row by its deviation
    assert range_of(rows.reshape(1, 1, 2, 2), HALF).offset == pytest.approx(1.0)
    assert range_of(np.ones((2, 2), np.float32), HALF).offset == np.inf


@pytest.mark.parametrize(("last", "kept"), [("y = Add(m, h)", set()), ("y = Tanh(m)", {"m", "y"})])
def test_a_small_value_may_be_rounded_beside_the_sum_that_it_is_added_to(
    tmp_path: Path, last: str, kept: set[str]
) -> None:
    body = f"h = MatMul(x, w)  m = Mul(h, small)  {last}"
    constants = _CONSTANTS + ", float small = {1e-6}"
    model = graph("float[N, 8] x", "float[N, 8] y", body, constants=constants)
    half, choice = lowered(model.clone(), x(), tmp_path)
    assert {row.node for row in choice.kept} == kept
    assert sqnr(model, half, x()) > 55

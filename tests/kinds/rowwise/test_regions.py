"""Rowwise regions: what is recognised whatever spells it, what stays apart and why, and what the result computes."""

from __future__ import annotations

import numpy as np
import pytest

from cases.models import fuse
from tests.support.graphs import graph, spelled
from tests.support.kinds.rowwise_models import difference, fused, session, with_library

X, R, Y, S = "float[N, 40] x", "float[N, 40] r", "float[N, 40] y", "float[N, 40] s"
G, B = "float[40] g", "float[40] b"
AXIS = "int64[1] last = {-1}, float two = {2}, float eps = {1e-5}, float inf = {-1e30}"
IMAGE = "float[2, 8, 6, 5] x"
RMS = (
    "p = Pow(@, two) m = ReduceMean(p, last) e = Add(m, eps) q = Sqrt(e) i = Reciprocal(q) n = Mul(@, i) y = Mul(n, g)"
)
SPELLED_LN = (
    "m = ReduceMean(x, last) d = Sub(x, m) p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) q = Sqrt(e) "
    "n = Div(d, q) h = Mul(n, g) y = Add(h, b)"
)
SPELLED_SOFTMAX = "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) t = ReduceSum(e, last) y = Div(e, t)"
VAR_LN = (  # the variance has a mean of its own, as torch's var of float32 after a Cast
    "m = ReduceMean(x, last) w = Mul(x, two) k = ReduceMean(w, last) d = Sub(w, k) p = Mul(d, d) "
    "v = ReduceMean<keepdims = 0>(p, last) u = Unsqueeze(v, last) e = Add(u, eps) q = Sqrt(e) s = Sub(x, m) "
    "n = Div(s, q) h = Mul(n, g) y = Add(h, b)"
)
GROUP_NORM = (
    "r = Reshape(x, split) n = InstanceNormalization(r, ones, zeros) k = Reshape(n, back) a = Mul(k, g) c = Add(a, b) "
    "t = Sigmoid(c) y = Mul(c, t)"
)
GROUPS = (
    "int64[3] split = {0, 4, -1}, int64[4] back = {2, 8, 6, 5}, "
    "float[4] ones = {1, 1, 1, 1}, float[4] zeros = {0, 0, 0, 0}"
)

# name: inputs, outputs, body, constants, the operators of each rowwise region
CASES = {
    "layer norm alone": (f"{X}, {G}, {B}", Y, "y = LayerNormalization(x, g, b)", "", ["LayerNormalization"]),
    "layer norm spelled out": (
        f"{X}, {G}, {B}", Y, SPELLED_LN, AXIS,
        ["ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"],
    ),
    "layer norm by a variance of its own": (
        f"{X}, {G}, {B}", Y, VAR_LN, AXIS,
        ["ReduceMean Mul ReduceMean Sub Mul ReduceMean Unsqueeze Add Sqrt Sub Div Mul Add"],
    ),
    "the same where others read the variance": (
        f"{X}, {G}, {B}", f"{Y}, float[N, 1] e", VAR_LN, AXIS,
        ["ReduceMean Sub Div Mul Add", "Mul ReduceMean Sub Mul ReduceMean Unsqueeze Add Sqrt"],
    ),
    "rms norm spelled out": (
        f"{X}, {G}", Y, RMS.replace("@", "x"), AXIS, ["Pow ReduceMean Add Sqrt Reciprocal Mul Mul"],
    ),
    "residual and rms norm, both outputs": (
        f"{X}, {R}, {G}", f"{Y}, {S}", "s = Add(x, r) " + RMS.replace("@", "s"), AXIS,
        ["Add Pow ReduceMean Add Sqrt Reciprocal Mul Mul"],
    ),
    "softmax spelled out": (X, Y, SPELLED_SOFTMAX, AXIS, ["ReduceMax Sub Exp ReduceSum Div"]),
    "masked softmax with a guard": (
        f"{X}, float[40] mask", Y,
        "t = Mul(x, two) a = Add(t, mask) s = Softmax(a) nan = IsNaN(s) y = Where(nan, zero, s)",
        f"{AXIS}, float zero = {{0}}", ["Mul Add Softmax IsNaN Where"],
    ),
    "silu and its mean over the image": (
        IMAGE, "float[2, 8, 6, 5] y, float[2, 8, 1, 1] z", "t = Sigmoid(x) y = Mul(x, t) z = ReduceMean(y, hw)",
        "int64[2] hw = {2, 3}", ["Sigmoid Mul ReduceMean"],
    ),
    "squeezed mean": (
        IMAGE, "float[2, 8] y", "y = ReduceMean<keepdims = 0>(x, hw)", "int64[2] hw = {2, 3}", ["ReduceMean"],
    ),
    "squeezed and put back": (
        X, Y, "m = ReduceMean<keepdims = 0>(x, last) u = Unsqueeze(m, last) y = Sub(x, u)", AXIS,
        ["ReduceMean Unsqueeze Sub"],
    ),
    "group norm as exported": (
        f"{IMAGE}, float[8, 1, 1] g, float[8, 1, 1] b", "float[2, 8, 6, 5] y", GROUP_NORM, GROUPS,
        ["Reshape InstanceNormalization Reshape Mul Add Sigmoid Mul"],
    ),
    "group norm": (
        f"{IMAGE}, float[8] g, float[8] b", "float[2, 8, 6, 5] y",
        "y = GroupNormalization<num_groups = 4>(x, g, b)", "", ["GroupNormalization"],
    ),
    "instance norm": (
        f"{IMAGE}, float[8] g, float[8] b", "float[2, 8, 6, 5] y", "y = InstanceNormalization(x, g, b)", "",
        ["InstanceNormalization"],
    ),
    "norm over channels": (
        f"{IMAGE}, float[8, 1, 1] g", "float[2, 8, 6, 5] y",
        "m = ReduceMean(x, c) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, c) q = Sqrt(v) n = Div(d, q) y = Mul(n, g)",
        "int64[1] c = {1}", ["ReduceMean Sub Mul ReduceMean Sqrt Div Mul"],
    ),
    "two norms that follow each other": (
        f"{X}, {G}, {B}", Y, "a = LayerNormalization(x, g, b) y = Softmax(a)", "", ["LayerNormalization Softmax"],
    ),
    "norms on both sides of a product": (
        f"{X}, float[40, 40] w, {G}", Y, "a = Softmax(x) m = MatMul(a, w) c = Add(m, x) y = LayerNormalization(c, g)",
        "", ["Softmax", "Add LayerNormalization"],  # in the norm the residual costs less than in the product
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_one_region(case: str) -> None:
    inputs, outputs, body, constants, expected = CASES[case]
    assert fused(inputs, outputs, body, constants=constants, opset=21).rowwise == expected


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [1, 37, 0])
@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same(case: str, rows: int, tmp_path) -> None:
    inputs, outputs, body, constants, _ = CASES[case]
    if "[N" not in inputs and rows != 37:
        pytest.skip("no dynamic dim")
    if rows == 0 and "Unsqueeze" in "".join(CASES[case][-1]):
        pytest.skip("ONNX Runtime itself fails")
    found = fused(inputs, outputs, body, constants=constants, opset=21)
    original = session(found.original)
    rng = np.random.default_rng(rows)
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else rows for d in i.shape]).astype(np.float32)
        for i in original.get_inputs()
    }
    expected = original.run(None, feeds)
    for run_in in (with_library(found, tmp_path), session(found.optimized)):
        for ours, theirs in zip(run_in.run(None, feeds), expected, strict=True):
            assert difference(ours, theirs, 1e-5, 1e-5) <= 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "constants", "reason"),
    [
        (
            f"{X}, int64[1] axes", "float[N, 1] y", "y = ReduceMean(x, axes)", "",
            "ReduceMean's axes `axes` are computed at run time; only constant axes are fused",
        ),
        (
            IMAGE, "float[1, 8, 1, 5] y", "y = ReduceMean(x, a)", "int64[2] a = {0, 2}",
            "ReduceMean reduces the axes (0, 2), which are not adjacent",
        ),
        ("float[N, 1] x", "float[N, 1] y", "y = Softmax(x)", "", "Softmax works along rows of length 1"),
        (
            "float[2, 4] x", "float[2, 4] y", "y = Softmax(x)", "",
            "`x` has 8 elements, too few for a kernel of its own",
        ),
        ("float[] x", "float[] y", "y = Softmax(x)", "", "The rank of `x` is unknown or 0"),
        (
            "int64[50, 8] x", "int64[50, 1] y", "y = ReduceL1(x, last)", AXIS,
            "The operator table has no ReduceL1 of int64 (`x`)",
        ),
        (X, Y, "y = ReduceMean<noop_with_empty_axes = 1>(x)", "", "ReduceMean has no axes to reduce"),
    ],
)  # fmt: skip
def test_what_stays_as_it_is(inputs: str, outputs: str, body: str, constants: str, reason: str) -> None:
    found = fused(inputs, outputs, body, constants=constants, opset=21)
    assert found.rowwise == []
    assert [r.reason for r in found.plan.refusals] == [reason]


def test_a_reshape_whose_result_is_needed_elsewhere_is_not_stored_again() -> None:
    body = "r = Reshape(x, flat) y = LayerNormalization(r, g) z = MatMul(r, w)"
    found = fused(
        "float[2, 8, 6, 40] x, float[40] g, float[40, 40] w", "float[2, 48, 40] y, float[2, 48, 40] z", body,
        constants="int64[3] flat = {2, 48, 40}", opset=21,
    )  # fmt: skip
    assert found.rowwise == ["LayerNormalization"]


def test_an_operand_of_another_shape_keeps_its_own_kernel() -> None:
    found = fused(f"{X}, float[N, 1, 40] q", "float[N, N, 40] y", "a = Softmax(x) y = Add(a, q)", opset=21)
    assert found.rowwise == ["Softmax"]


LONG = {
    "one row": (
        "float[1, 500003] x, float[500003] g", "float[1, 500003] y", "s = Softmax(x) y = Mul(s, g)", "", (1, 500003),
    ),
    "three rows and their sums": (
        "float[3, 200000] x, float[200000] g", "float[3, 200000] y, float[3, 1] z",
        "d = Mul(x, g) z = ReduceSum(d, last) y = Sub(d, z)", AXIS, (3, 200000),
    ),
    "over channels": (
        "float[1, 70, 100, 61] x, float[70, 1, 1] g", "float[1, 70, 100, 61] y",
        "m = ReduceMean(x, c) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, c) q = Sqrt(v) n = Div(d, q) y = Mul(n, g)",
        "int64[1] c = {1}", (1, 70, 100, 61),
    ),
}  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", LONG)
def test_threads_share_rows_where_there_are_few(case: str, tmp_path) -> None:
    inputs, outputs, body, constants, shape = LONG[case]
    found = fused(inputs, outputs, body, constants=constants, opset=21)
    assert len(found.rowwise) == 1
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    g = session(found.original).get_inputs()[1].shape
    feeds["g"] = rng.standard_normal(g).astype(np.float32)
    expected = session(found.original).run(None, feeds)
    results = [with_library(found, tmp_path / str(n), threads=n).run(None, feeds) for n in (1, 2)]
    for ours, alone, theirs in zip(*results, expected, strict=True):
        np.testing.assert_array_equal(ours, alone)  # results do not depend on the threads
        assert difference(ours, theirs, 1e-4, 1e-4) <= 1


@pytest.mark.parametrize(("other", "shared"), [("0.5", True), ("0.25", False), ("-0.5", False)])
def test_regions_that_differ_in_nothing_share_a_program(other: str, shared: bool) -> None:
    body = "a = Div(c, x) y = Softmax(a)  b = Div(d, r) s = Softmax(b)"
    plan = fuse(graph(f"{X}, {R}", f"{Y}, {S}", body, constants=f"float c = {{0.5}}, float d = {{{other}}}"))
    assert [[n.name for n in region.nodes] for region in plan.regions] == [["a", "y"], ["b", "s"]]
    assert (plan.regions[0].meaning is plan.regions[1].meaning) == shared


def test_regions_that_differ_in_the_sign_of_zero_have_programs_of_their_own() -> None:
    body = "a = Div(x, c) y = Softmax(a)  b = Div(r, d) s = Softmax(b)"
    plan = fuse(graph(f"{X}, {R}", f"{Y}, {S}", body, constants="float c = {0}, float d = {-0.0}"))
    constants = [spelled(region.meaning.stages[0].element.program) for region in plan.regions]
    assert len(plan.regions) == 2 and constants[0] != constants[1]


def test_inputs_that_do_not_span_their_view_keep_a_kernel_of_their_own() -> None:
    """Masks of windows say nothing of the batch and of the heads: what they are added to must lie in their shape."""
    body = "a = Add(x, b) r = Reshape(a, five) c = Add(r, m) d = Reshape(c, four) y = Softmax(d)"
    constants = "int64[5] five = {2, 4, 3, 7, 7}, int64[4] four = {8, 3, 7, 7}"
    inputs = "float[8, 3, 7, 7] x, float[1, 3, 7, 7] b, float[1, 4, 1, 7, 7] m"
    plan = fuse(graph(inputs, "float[8, 3, 7, 7] y", body, constants=constants))
    (rows,) = [r for r in plan.regions if r.kind.name == "rowwise"]
    assert [n.op_type for n in rows.nodes] == ["Add", "Reshape", "Softmax"]

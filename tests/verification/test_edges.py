"""Edges of what inputs may hold and of sizes: what is drawn, that it finds what noise does not, and refuses nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph import traits
from onnxopt.graph.signature import Tensor
from onnxopt.runtime import sessions
from onnxopt.verification import verify
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.reference import Reference
from onnxopt.verification.sampling import edges, samples
from onnxopt.verification.sampling.cases import Case
from onnxopt.verification.sampling.edge_cases import EdgeCases
from tests.support.graphs import graph, hold
from tests.support.small_models import write

X = Tensor("x", "float32", ("batch", 64))
ATTENTION = """
g (float[batch, tokens, 8] x, float[batch, 1, tokens] bias, float[batch, tokens, tokens] other)
   => (float[batch, tokens, 8] y) <float s = {0.5}> {
   q = Sin(x) k = Cos(x) kt = Transpose<perm = [0, 2, 1]>(k) p = MatMul(q, kt) scaled = Mul(p, s)
   masked = Add(scaled, bias) w = Softmax<axis = -1>(masked) o = MatMul(w, x) z = MatMul(other, o) y = Add(z, x)
}
"""
POINTWISE = "g (float[batch, n] x) => (float[batch, n] y) { %s }"


def _verify(tmp_path: Path, original: str, other: str, **options: Any) -> onnxopt.VerificationReport:
    files = [write(tmp_path / f"{name}.onnx", text) for name, text in (("a", original), ("b", other))]
    return onnxopt.verify(*files, providers=[sessions.CPU], **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_elements_of_each_kind_are_among_noise(dtype: str) -> None:
    def drawn(kind: str) -> np.ndarray:
        tensor = Tensor("x", dtype, ("batch", 64))
        return np.asarray(samples.draw([tensor], {"batch": 5}, 0, {}, kind)["x"].astype(np.float64))

    zeros = drawn(edges.ZEROS)
    for value in (0.0, 1.0, -1.0):
        assert (zeros == value).any()
    assert not zeros[-1].any()  # silence, beside samples that are not
    assert np.signbit(zeros[zeros == 0]).any()
    denormal = np.abs(zeros[zeros != 0]).min()
    assert 0 < denormal < float(samples.ml_dtypes.finfo(dtype).smallest_normal)
    assert 1e3 < np.abs(drawn(edges.LARGE)).max() <= 1e4
    assert 1e3 < np.abs(drawn(edges.LESS_LARGE)).max() <= 3e3
    assert 30 < np.abs(drawn(edges.LEAST_LARGE)).max() <= 100
    assert np.isnan(drawn(edges.NAN)).sum() == 1 and not np.isinf(drawn(edges.NAN)).any()
    infinite = drawn(edges.INFINITE)
    assert np.isposinf(infinite).sum() == np.isneginf(infinite).sum() == 1 and not np.isnan(infinite).any()
    assert np.isfinite(infinite[:3]).all() and not drawn(edges.NOTHING).any()
    alone = drawn(edges.DENORMAL)
    assert np.median(np.abs(alone)) > 0 and np.abs(alone).max() < 2 * float(
        samples.ml_dtypes.finfo(dtype).smallest_normal
    )


@pytest.mark.parametrize(
    ("mask", "scores", "roles"),
    [
        ("batch, 1, keys", "batch, tokens, keys", ["additive_mask"]), ("1, 1", "tokens, keys", ["additive_mask"]),
        ("keys", "batch, tokens, keys", ["additive_mask"]), ("batch, tokens, keys", "batch, tokens, keys", []),
    ],
)  # fmt: skip
def test_masks_of_scores_that_are_inputs_are_stretched(
    mask: str, scores: str, roles: list[str], tmp_path: Path
) -> None:
    text = f"""g (float[{scores}] scores, float[{mask}] mask) => (float[{scores}] p) <float k = {{0.5}}> {{
        s = Mul(scores, k)  f = Add(s, mask)  p = Softmax<axis = -1>(f) }}"""
    known = traits.of(ir.load(write(tmp_path / "m.onnx", text)))
    assert [use.role for use in known.uses.get("mask", ())] == roles


def test_masks_that_are_added_are_told_by_their_use(tmp_path: Path) -> None:
    known = traits.of(ir.load(write(tmp_path / "m.onnx", ATTENTION)))
    assert {name: [use.role for use in uses] for name, uses in known.uses.items()} == {"bias": ["additive_mask"]}
    sizes = {"batch": 4, "tokens": 12}
    low = {}
    for kind in ("", edges.ZEROS, edges.LARGE, edges.NAN):
        bias = samples.draw(known.inputs, sizes, 0, known.uses, kind)["bias"]
        assert (bias[..., 1] == 0).any() and (set(np.unique(bias)) <= {0, bias.min()} or kind == edges.ZEROS)
        assert (bias.max(axis=-1) > -10).all()  # every row sees a key
        low[kind] = float(bias.min())
    assert low == {"": -1e4, edges.ZEROS: -np.inf, edges.LARGE: float(np.finfo(np.float32).min), edges.NAN: 0}


@pytest.mark.parametrize(
    "wrong",
    ["c = Constant<value = float {1.01}>() other_bias = Mul(bias, c)",
     # Zeros as tiny values, as a kernel may that takes them for hidden.
     "c = Constant<value = float {0}>() e = Equal(bias, c) h = Constant<value = float {-1}>() "
     "m = IsInf(bias) a = Abs(bias) t = Constant<value = float {1e-20}>() l = Less(a, t) "
     "f = Not(e) tiny = And(l, f) other_bias = Where(tiny, h, bias)"],
    ids=["by a hundredth", "denormals"],
)  # fmt: skip
def test_what_is_added_to_scores_is_a_bias_too(tmp_path: Path, wrong: str) -> None:
    """As of relative positions, which masks of zeros say nothing of."""
    other = ATTENTION.replace("masked = Add(scaled, bias)", f"{wrong} masked = Add(scaled, other_bias)")
    assert _verify(tmp_path, ATTENTION, ATTENTION).status == "passed"
    assert _verify(tmp_path, ATTENTION, other).status == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n, 4] x, float[n, 4] b) => (float[n, 4] y) { s = Add(x, b) y = Softmax(s) }",
        "g (float[n, 2] x, float[n, 2] b) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> "
        "{ t = Tanh(x) p = MatMul(t, w) s = Add(p, b) y = Softmax(s) }",
        "g (float[n, 4] x, float[n, 4] b) => (float[n, n] y) "
        "{ a = Tanh(x) c = Transpose(b) p = MatMul(a, c) y = Add(p, p) }",
    ],
)
def test_what_is_added_to_anything_else_is_no_mask(tmp_path: Path, text: str) -> None:
    assert not traits.of(ir.load(write(tmp_path / "m.onnx", text))).uses


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [
        ("y = Identity(x)", "c = Constant<value = float {1000}>() y = Min(x, c)", edges.LARGE),
        ("y = Identity(x)", "b = IsNaN(x) c = Constant<value = float {0}>() y = Where(b, c, x)", edges.NAN),
        ("y = Exp(x)", "c = Constant<value = float {80}>() d = Min(x, c) y = Exp(d)", edges.INFINITE),
        ("b = Sign(x) y = Add(b, x)", "c = Constant<value = float {0}>() g = GreaterOrEqual(x, c) "
         "o = Constant<value = float {1}>() m = Neg(o) s = Where(g, o, m) y = Add(s, x)", edges.ZEROS),
        # What is not above 1e-30 counts as zero.
        ("b = Sign(x) y = Add(b, x)", "c = Constant<value = float {1e-30}>() z = Sub(c, c) a = Abs(x) "
         "g = Greater(a, c) b = Sign(x) s = Where(g, b, z) y = Add(s, x)", edges.ZEROS),
    ],
    ids=["large", "nan", "infinite", "zero", "denormal"],
)  # fmt: skip
def test_a_difference_at_an_edge_alone_is_found(tmp_path: Path, right: str, wrong: str, kind: str) -> None:
    assert _verify(tmp_path, POINTWISE % right, POINTWISE % right).status == "passed"
    report = _verify(tmp_path, POINTWISE % right, POINTWISE % wrong)
    assert report.status == "failed"
    found = {check.case.split(", ")[2] for check in report.failures}
    assert kind in found and "seed 0" not in found  # noise finds nothing


@pytest.mark.parametrize(("axis", "from_size"), [(0, 4), (1, 40), (1, 1000)])
def test_a_difference_from_a_size_on_is_found(tmp_path: Path, axis: int, from_size: int) -> None:
    past = (
        f"t = Tanh(x) s = Shape<start = {axis}, end = {axis + 1}>(x) l = Constant<value = int64[1] {{{from_size}}}>() "
        "b = Less(s, l) f = CastLike(b, x) y = Mul(t, f)"
    )
    report = _verify(tmp_path, POINTWISE % "y = Tanh(x)", POINTWISE % past)
    assert report.status == "failed"


def test_the_longest_size_that_a_table_allows_is_tried(tmp_path: Path) -> None:
    text = """
    g (int64[batch, n] ids) => (float[batch, n] y) <float[300] table> {
      s = Shape<start = 1, end = 2>(ids) e = Constant<value = int64 {1}>() z = Constant<value = int64 {0}>()
      l = Squeeze(s) r = Range(z, l, e) t = Gather(table, r) f = Cast<to = 1>(ids) y = Add(f, t)
    }
    """
    model = write(tmp_path / "m.onnx", text.replace("table>", f"table = {{{', '.join(['1'] * 300)}}}>"))
    report = onnxopt.verify(model, model, providers=[sessions.CPU])
    assert "batch=1, n=300, long, seed 0" in {check.case for check in report.checks}
    assert report.status == "passed"


def test_empty_dims_are_tried_where_the_operators_take_them(tmp_path: Path) -> None:
    def empty(text: str) -> set[str]:
        report = _verify(tmp_path, text, text)
        return {check.case for check in report.checks if edges.EMPTY in check.case}

    assert empty(POINTWISE % "y = Tanh(x)") == {"batch=0, n=9, empty, seed 0", "batch=5, n=0, empty, seed 0"}
    assert empty(POINTWISE % 'y = Einsum<equation = "ij->ij">(x)') == set()


def test_a_pool_that_reads_nan_as_a_number_is_found(tmp_path: Path) -> None:
    """Windows of NaN alone are NaN in ONNX Runtime, of which one NaN is or is not, by how it runs the pool."""
    text = (
        "g (float[batch, h, w, 16] x) => (float[batch, p, q, c] y) { t = Transpose<perm = [0, 3, 1, 2]>(x) "
        "m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(t) %s y = Transpose<perm = [0, 2, 3, 1]>(n) }"
    )
    right, wrong = "n = Identity(m)", "b = IsNaN(m) z = Constant<value = float {0}>() n = Where(b, z, m)"
    assert _verify(tmp_path, text % right, text % right).status == "passed"
    report = _verify(tmp_path, text % right, text % wrong)
    assert report.status == "failed"
    assert {check.case.split(", ")[-2] for check in report.failures} == {edges.NAN}


def test_what_the_original_itself_does_not_fix_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's optimizations change where NaN is: those elements say nothing, all others do."""
    model = write(tmp_path / "m.onnx", POINTWISE % "y = Tanh(x)")
    file, coverage = ModelFile(model, traits.of(ir.load(model))), Coverage(edge_cases=True)
    (reference,) = verify.references(file, coverage, folder=tmp_path, providers=[sessions.CPU])
    case = next(case for case in reference.outputs if case.kind == edges.NAN)
    at = tuple(np.argwhere(np.isnan(reference.outputs[case]["y"]))[0])
    plain = {"y": reference.outputs[case]["y"].copy()}
    other = {"y": reference.outputs[case]["y"].copy()}
    other["y"][at] = 0.5
    label = (sessions.CPU, False)
    monkeypatch.setitem(reference.judge._plain, case, plain)  # as it is: both runs of the original have NaN there
    assert not reference.compare_outputs(label, case, other)[0].ok
    plain["y"][at] = 0.25
    reference.judge._judged.clear()
    assert reference.compare_outputs(label, case, other)[0].ok
    other["y"][0] += 1
    assert not reference.compare_outputs(label, case, other)[0].ok


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_models_whose_large_values_overflow_are_tried_at_smaller_ones(tmp_path: Path, dtype: str) -> None:
    """x to the 11th power is finite below 3,160 in float32, and below 3 in float16."""
    body = "{ a = Mul(x, x) b = Mul(a, a) c = Mul(b, b) d = Mul(c, a) y = Mul(d, x) }"
    text = f"g ({dtype}[batch, 16] x) => ({dtype}[batch, 16] y) {body}"
    model = write(tmp_path / "m.onnx", text)
    report = onnxopt.verify(model, model, providers=[sessions.CPU])
    kinds = {case.split(", ")[1] for case in {check.case for check in report.checks}}
    assert report.status == "passed"
    assert kinds & set(edges.UP_TO) == ({edges.LESS_LARGE} if dtype == "float" else set())


def test_a_graph_that_refuses_dims_of_0_is_named_and_a_kernel_that_does_is_left_out(tmp_path: Path) -> None:
    """A Reshape with -1 is refused without elements; the original's copies the batch."""
    text = "g (float[batch, n] x) => (float[batch, n] y) <int64[2] s = {%s}> { t = Tanh(x) %s y = Reshape(t, q) }"
    original = text % ("0, 0", "q = Shape(x)")
    other = text % ("0, -1", "q = Identity(s)")
    report = _verify(tmp_path, original, other)
    assert report.status == "passed", report.reason
    (note,) = [note for note in report.notes if "refuses batch=0, n=9, which the original takes: " in note]
    assert note.startswith("CPUExecutionProvider: the optimized model refuses")


# A table of 70 rows, which the CPU refuses to read past its end.
def _of_table(tmp_path: Path) -> Reference:
    body = (
        "s = Shape <start = 1, end = 2> (x) n = Squeeze (s) p = Range (i0, n, i1) e = Gather (table, p) "
        "u = Unsqueeze (x, last) y = Add (u, e)"
    )
    model = graph("float[batch, n] x, float[70, 8] table, int64 i0, int64 i1, int64[1] last", "float[b, n, 8] y", body)
    hold(model, {"table": np.ones((70, 8))}, np.float32)
    hold(model, {"i0": np.array(0), "i1": np.array(1), "last": np.array([2])}, np.int64)
    ir.save(model, tmp_path / "m.onnx")
    file = ModelFile(tmp_path / "m.onnx", traits.of(model))
    return Reference(file, sessions.CPU, Coverage(edge_cases=True), folder=tmp_path)


def test_sizes_that_the_cpu_refuses_decide_nothing_elsewhere(tmp_path: Path) -> None:
    reference = _of_table(tmp_path)
    past = Case((("batch", 2), ("n", 71)), 0, kind=edges.MANY)
    within = Case((("batch", 2), ("n", 70)), 0, kind=edges.MANY)
    assert not reference._is_invalid(past)  # on the CPU itself
    reference.provider = "another"
    assert reference._is_invalid(past) and not reference._is_invalid(within)
    assert not reference._is_invalid(dataclasses.replace(past, kind=""))  # a usual size is no edge
    (note,) = [note for note in reference.notes if "refuses on the CPU" in note]
    assert "n=71, many elements, seed 0, which it refuses on the CPU: " in note


def test_sizes_of_0_are_not_tried_on_a_gpu_where_attention_would_end_the_process(tmp_path: Path) -> None:
    reference = _of_table(tmp_path)
    for operators, on_gpu, tries in (
        ({"com.microsoft::MultiHeadAttention"}, True, False),
        ({"com.microsoft::MultiHeadAttention"}, False, True),
        ({"MatMul"}, True, True),
    ):
        of = dataclasses.replace(reference.traits, operators=frozenset({*operators, "Add"}))
        with mock.patch.object(edges, "empty_sizes", return_value=[{"batch": 0, "n": 3}]):
            tried = EdgeCases(of, {}, on_gpu, lambda case: None, reference.budget)._sizes({"batch": 2, "n": 3})
            assert (edges.EMPTY in [kind for kind, _ in tried]) is tries

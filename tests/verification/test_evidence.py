"""Outputs of the same inputs are compared, and a right kernel is not refused for the original's own rounding."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph import input_uses, traits
from onnxopt.program.operators import table as operators
from onnxopt.runtime import sessions
from onnxopt.verification import verify
from onnxopt.verification.check import Check
from onnxopt.verification.compare import Difference
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.early_reference import EarlyRun
from onnxopt.verification.reference import Reference
from onnxopt.verification.rounding import in_float64, last_places
from onnxopt.verification.rounding.exactness import FromFloat64
from onnxopt.verification.sampling import inputs, samples
from tests.support.small_models import write

# The dims of the Gather's result are not declared: the normalized model shows them, so that another draw would follow.
LOOKUP = """
g (int64[B, S] ids, float[S] z) => (float[B, S, 2] y)
   <float[5, 2] table = {1, 2, 3, 4, 5, -6, 7, -8, 9, 0.5}, float k = {0.5}> {
   e = Gather(table, ids) q = Mul(e, e) r = Add(q, k) y = Tanh(r)
}
"""
# x - (x + 4096): the sum takes 12 bits of x, and 1000 of it are a limit.
CANCELLING = "g (float[n, 32] x) => (float[n, 32] y) <float c = {65536}> { s = Add(x, c) d = Sub(s, c) y = Tanh(d) }"
_NUMBERS = {"float": 1, "double": 11, "float16": 10}
CONVOLUTION = """
g (float[n, 4, h, w] x) => (float[n, 6, h2, w2] y, float[n, 6, 1, 1] m, float[n, 6, 1, 1] a)
   <float[6, 2, 3, 2] k, float[6] b = {1, 2, 3, -4, 5, 6}> {
   c = Conv<group = 2, strides = [2, 1], dilations = [1, 2], pads = [1, 0, 2, 1]>(x, k, b)
   y = LeakyRelu<alpha = 0.1>(c) m = GlobalMaxPool(y) a = GlobalAveragePool(y)
}
"""


def _reference(model: Path, early: EarlyRun | None = None) -> Reference:
    file = ModelFile(model, traits.of(ir.load(model)))
    (reference,) = verify.references(file, Coverage(), folder=model.parent, providers=[sessions.CPU], early=early)
    return reference


def test_outputs_of_other_inputs_are_not_taken(tmp_path: Path) -> None:
    """A run in the background drew other inputs than the reference does, at the same sizes and with the same seed."""
    model = write(tmp_path / "m.onnx", LOOKUP)
    known = traits.of(ir.load(model))
    other = dataclasses.replace(known, uses={"ids": (input_uses.Use("zero"),)})
    early = verify.open_early(model, other, 1, {})
    reference = _reference(model, early=early)
    assert all(check.ok and check.difference.max_abs == 0 for check in reference.check(model, None) if check.difference)


def test_what_a_second_model_shows_without_news_draws_the_same(tmp_path: Path) -> None:
    use = input_uses.Use("index", (5, 2), None)
    more = dataclasses.replace(use, result=("B", "S", 2))
    assert input_uses.merged({"ids": (use,)}, {"ids": (more,)}) == {"ids": (more,)}


def test_inputs_that_change_between_runs_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "m.onnx", LOOKUP)
    monkeypatch.setattr(inputs, "_MAX_HELD", 0)  # as inputs that are too large are drawn again
    reference, true_draw = _reference(model), samples.draw

    def changed(*arguments: Any) -> dict[str, Any]:
        drawn = true_draw(*arguments)
        return drawn | {"ids": 4 - drawn["ids"]}

    monkeypatch.setattr(samples, "draw", changed)
    with pytest.raises(RuntimeError, match="are others than those that the original got"):
        reference.check(model, None)


@pytest.mark.usefixtures("library")
def test_a_wrong_kernel_of_looked_up_values_is_left_out(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its embedding's dims are not declared, so the background's run drew with other traits."""
    row = operators.OPERATORS["", "Tanh"]
    wrong = dataclasses.replace(row, meaning=lambda c: c.args[0].tanh() * 1.5)
    monkeypatch.setitem(operators.OPERATORS, ("", "Tanh"), wrong)  # type: ignore[index]
    manifest = onnxopt.optimize(write(tmp_path / "m.onnx", LOOKUP), artifact, archs=()).manifest
    assert [row.ops for row in manifest.left_out] == [("Mul", "Add", "Tanh")]


def test_float64_speaks_for_what_is_nearer_than_the_original(tmp_path: Path) -> None:
    """The original loses digits; a model that computes the same without loss differs from it by 800 limits."""
    original = write(tmp_path / "a.onnx", CANCELLING)
    better = write(tmp_path / "b.onnx", "g (float[n, 32] x) => (float[n, 32] y) { y = Tanh(x) }")
    report = onnxopt.verify(original, better, providers=[sessions.CPU])
    assert report.status == "passed", report.reason
    first = report.checks[0]
    assert first.difference is not None and not first.difference.ok and isinstance(first.exactness, FromFloat64)
    assert first.exactness.found < 0.01 < first.exactness.original
    worse = write(tmp_path / "c.onnx", CANCELLING.replace("y = Tanh(d)", "t = Tanh(d) e = Add(t, c) y = Sub(e, c)"))
    assert onnxopt.verify(better, worse, providers=[sessions.CPU]).status == "failed"


def test_a_difference_far_below_the_limit_is_found_where_the_original_is_exact(tmp_path: Path) -> None:
    text = "g (float[n, 32] x) => (float[n, 32] y) <float k = {2}> { y = Mul(x, k) }"
    original, wrong = write(tmp_path / "a.onnx", text), write(tmp_path / "b.onnx", text.replace("{2}", "{2.0002}"))
    report = onnxopt.verify(original, wrong, providers=[sessions.CPU])
    assert report.status == "failed"
    first = report.failures[0]
    assert first.difference is not None and (first.difference.excess or 2) < 1
    assert "times the limit from float64" in report.reason


def test_a_model_in_float64_computes_the_same_with_fewer_roundings(tmp_path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        + CONVOLUTION.replace("float[6, 2, 3, 2] k", f"float[6, 2, 3, 2] k = {{{', '.join(['1'] * 72)}}}")
    )
    k = np.random.default_rng(1).standard_normal((6, 2, 3, 2)).astype(np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(k, "k"))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "wide").mkdir()
    path, single = in_float64.double(tmp_path / "m.onnx", tmp_path / "wide")
    assert single == {"LeakyRelu"}
    x = np.random.default_rng(0).standard_normal((2, 4, 9, 7))
    exact = sessions.run(sessions.open_session(path), {"x": x})
    found = sessions.run(sessions.open_session(tmp_path / "m.onnx"), {"x": x.astype(np.float32)})
    assert {str(array.dtype) for array in exact.values()} == {"float64"}
    for name, array in found.items():
        np.testing.assert_allclose(exact[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [20, 22, 23])
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_results_that_change_move_by_last_places(tmp_path: Path, dtype: str, opset: int) -> None:
    text = (
        f"g ({dtype}[n] x, int64[n] k) => ({dtype}[n] y, {dtype}[n] z) "
        f"{{ f = Cast<to = {_NUMBERS[dtype]}>(k) y = Add(x, f) z = Mul(f, f) }}"
    )
    (tmp_path / "changed").mkdir()
    model = write(tmp_path / "m.onnx", f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    path = last_places.change(model, tmp_path / "changed")
    kind = np.dtype({"float": "float32", "double": "float64", "float16": "float16"}[dtype])
    feeds = {"x": np.linspace(-3, 3, 50).astype(kind), "k": np.arange(50)}
    expected, first = sessions.run(sessions.open_session(model), feeds), None
    for session in (sessions.open_session(path), sessions.open_session(path)):
        runs = [sessions.run(session, feeds) for _ in range(2)]
        assert not np.array_equal(runs[0]["y"], runs[1]["y"])
        first = runs[0]["y"] if first is None else first
        np.testing.assert_array_equal(runs[0]["y"], first)
        moved = np.abs(runs[0]["y"].astype(np.float64) - expected["y"].astype(np.float64))
        assert 0 < moved.max() <= 60 * 4 * np.finfo(kind).eps
        np.testing.assert_array_equal(runs[0]["z"], expected["z"])  # integers stay


@pytest.mark.parametrize("opset", [20, 22])
def test_results_in_branches_and_bodies_change(tmp_path: Path, opset: int) -> None:
    """A decoder whose whole step is a branch moves as one without branches does."""
    text = """
        g (bool[1] flag, float[n] x) => (float[n] y, float[n] z) <int64 three = {3}, bool always = {1}> {
          y = If (flag) <then_branch = t () => (float[n] a) { e = Sin (x) a = Mul (e, e) },
                         else_branch = f () => (float[n] b) { c = Cos (x) b = Mul (c, c) }>
          z = Loop (three, always, x) <body = body (int64 i, bool go, float[n] v) => (bool on, float[n] w) {
            on = Identity (go) w = Cos (v) }>
        }"""
    (tmp_path / "changed").mkdir()
    model = write(tmp_path / "m.onnx", f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    path = last_places.change(model, tmp_path / "changed")
    for flag in (True, False):
        feeds = {"flag": np.array([flag]), "x": np.linspace(0.1, 1.4, 50, dtype=np.float32)}
        expected, run = (sessions.run(sessions.open_session(file), feeds) for file in (model, path))
        for name in ("y", "z"):
            assert 1e-9 < np.abs(run[name] - expected[name]).max() <= 8 * 2.0**-22


def test_an_unstable_original_is_named_and_does_not_count(tmp_path: Path) -> None:
    """Rounding decides how many elements the output has; the original and another order of additions differ."""
    body = (
        "g (float[n] x) => (int64[1, k] y, float[n] z) <float c = {{1000000}}, float o = {{0}}, float h = {{0.3}}> "
        "{{ {0} q = Mul(t, c) s = Sin(q) b = Greater(s, o) y = NonZero(b) z = Tanh(x) }}"
    )
    original = write(tmp_path / "a.onnx", body.format("t = Mul(x, h)"))
    other = write(tmp_path / "b.onnx", body.format("e = Mul(x, h) f = Exp(e) t = Log(f)"))
    report = onnxopt.verify(original, other, providers=[sessions.CPU], shapes={"n": (4000,)})
    assert report.status == "passed", report.reason
    assert [(row.output, row.reason.split(":")[0]) for row in report.weak] == [("y", "the original is unstable")]
    assert any(check.unstable for check in report.checks)


def test_a_wrong_output_of_a_stable_original_is_not_excused(tmp_path: Path) -> None:
    text = "g (float[n] x) => (int64[1, k] y) <float o = {0}> { b = Greater(x, o) y = NonZero(b) }"
    original, wrong = write(tmp_path / "a.onnx", text), write(tmp_path / "b.onnx", text.replace("{0}", "{0.5}"))
    assert onnxopt.verify(original, wrong, providers=[sessions.CPU]).status == "failed"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("z = Sub(x, x) y = Mul(z, x)", "it is zero throughout, in every case"),
        ("z = Sub(x, x) y = Exp(z)", "it is constant, 1 throughout, in every case"),
        ("z = Sub(x, x) y = Div(z, z)", "it is NaN or infinite throughout, in every case"),
        ("z = Mul(x, t) y = Mul(z, t)", "it is zero but for denormals"),
    ],
)
def test_an_output_that_says_nothing_is_named(tmp_path: Path, body: str, reason: str) -> None:
    text = "g (float[n] x) => (float[n] y) <float t = {1e-22}> { %s }" % body  # noqa: UP031
    model = write(tmp_path / "m.onnx", text)
    report = onnxopt.verify(model, model, providers=[sessions.CPU])
    assert report.status == "undecided"
    assert [row.output for row in report.weak] == ["y"] and report.weak[0].reason.startswith(reason)


def test_outputs_that_vary_or_depend_on_no_float_count(tmp_path: Path) -> None:
    text = (
        "g (float[n] x) => (float[n] y, int64[1] s, float[2] c) "
        "{ y = Tanh(x) s = Shape(x) c = Constant<value = float[2] {1, 1}>() }"
    )
    model = write(tmp_path / "m.onnx", text)
    report = onnxopt.verify(model, model, providers=[sessions.CPU])
    assert (report.status, report.weak) == ("passed", ())


def test_the_noise_of_one_case_excuses_no_other() -> None:
    failed = Check("p", True, "c", "y", Difference("float32", (1,), excess=3.0))
    assert not failed.ok
    assert not dataclasses.replace(failed, noise=0.5).ok
    noisy = dataclasses.replace(failed, noise=1.0)
    assert noisy.ok and not noisy.is_sharp(1e-4)
    exact = dataclasses.replace(failed, exactness=FromFloat64(0.5, 0.4, "float64"))
    assert exact.ok and exact.is_sharp(1e-4)
    assert not dataclasses.replace(failed, exactness=FromFloat64(3.0, 0.4, "float64")).ok
    assert dataclasses.replace(noisy, exactness=FromFloat64(3.0, 0.4, "float64")).ok


def test_no_more_runs_are_made_than_account_for_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First inputs change, in the original itself; a model is written only where that does not suffice."""
    reference = _reference(write(tmp_path / "m.onnx", CANCELLING.replace("65536", "1")))
    case, written, true_change = next(iter(reference.outputs)), list[Path](), last_places.change

    def change(model: Path, *arguments: Any, **named: Any) -> Path:
        written.append(model)
        return true_change(model, *arguments, **named)

    monkeypatch.setattr(last_places, "change", change)
    little = reference.judge.evidence.spread(case, "y", 0.0, reference.outputs[case]["y"])
    assert little is not None and little.excess is not None and written == []
    made = reference.judge.evidence._changing._runs[case]
    assert len(made) == 1 and not np.array_equal(made[0]["y"], reference.outputs[case]["y"])
    much = reference.judge.evidence.spread(case, "y", 1e9, reference.outputs[case]["y"])
    assert much is not None and much.excess is not None and much.excess > little.excess
    assert len(written) == 1 and len(made) == 6


def test_a_model_that_draws_numbers_is_run_with_one_change_where_that_suffices(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "g (float[n] x) => (float[n] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    reference = _reference(model)
    last = list(reference.outputs)[-1]
    assert reference.judge.evidence.spread(last, "y", 1e-9, reference.outputs[last]["y"]) is not None
    in_order = reference.judge.evidence._changing._in_order
    assert [len(draw._ran) for draw in in_order] == [len(reference.outputs), 0, 0, 0]


def test_a_model_that_draws_random_numbers_is_judged_by_what_last_places_move(tmp_path: Path) -> None:
    text = (
        "g (float[n, 32] x) => (float[n, 32] y) <float c = {65536}> "
        "{ r = RandomNormalLike(x) a = Add(x, r) s = Add(a, c) d = Sub(s, c) y = Tanh(d) }"
    )
    original = write(tmp_path / "a.onnx", text)
    other = write(tmp_path / "b.onnx", text.replace("s = Add(a, c) d = Sub(s, c)", "d = Identity(a)"))
    report = onnxopt.verify(original, other, providers=[sessions.CPU])
    assert report.status == "undecided", report.reason
    assert all(check.noise is not None and check.noise > 1 for check in report.checks)
    wrong = write(tmp_path / "c.onnx", text.replace("y = Tanh(d)", "e = Add(d, r) y = Tanh(e)"))
    assert onnxopt.verify(original, wrong, providers=[sessions.CPU]).status == "failed"

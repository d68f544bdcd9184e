"""What is tried depends on what a plain run takes, not on what else the machine does, and what is not tried is said."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from onnxopt.graph import traits
from onnxopt.runtime import sessions
from onnxopt.verification import verify
from onnxopt.verification.budget import SECONDS, Budget
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.reference import Reference
from onnxopt.verification.sampling import edges
from tests.support.small_models import write

POINTWISE = "g (float[batch, n] x) => (float[batch, n] y) { y = Tanh(x) }"
EVERY_VALUE = {edges.ZEROS, edges.LARGE, edges.NAN, edges.INFINITE, edges.NOTHING, edges.DENORMAL}


def _reference(tmp_path: Path, text: str = POINTWISE, seconds: float = 1.0) -> Reference:
    model = write(tmp_path / "m.onnx", text)
    file, coverage = ModelFile(model, traits.of(ir.load(model))), Coverage(seconds=seconds, edge_cases=True)
    (reference,) = verify.references(file, coverage, folder=tmp_path, providers=[sessions.CPU])
    return reference


def test_of_a_quick_model_every_edge_is_tried_without_any_time_left(tmp_path: Path) -> None:
    """As on a machine that is so busy that the time for noise is over at once."""
    reference = _reference(tmp_path, seconds=0.0)
    kinds = {case.kind for case in reference.outputs}
    assert kinds >= EVERY_VALUE | {"", edges.EMPTY, edges.ONE, edges.MANY}
    assert len([case for case in reference.outputs if not case.kind]) == 15
    assert reference.left_out() == ()


def test_of_a_slow_model_the_report_says_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_run = Reference._measured
    monkeypatch.setattr(Reference, "_measured", lambda *given: Budget(SECONDS / 3 / 1.5 + true_run(*given).run, 0.0))
    reference = _reference(tmp_path)
    kinds = {case.kind for case in reference.outputs}
    assert edges.ZEROS in kinds and not kinds & (EVERY_VALUE - {edges.ZEROS})
    (note,) = reference.left_out()
    assert note.startswith("CPUExecutionProvider: left out for time or memory, where a plain run takes 0.22 s: ")
    assert all(kind in note for kind in (edges.LARGE, edges.NAN, edges.EMPTY))


def test_differences_within_the_limit_pass_by_it_where_there_is_no_time(tmp_path: Path) -> None:
    body = "g (float[n, 32] x) => (float[n, 32] y) <float k = {%s}> { y = Mul(x, k) }"
    reference = _reference(tmp_path, body % "2")
    other = write(tmp_path / "other.onnx", body % "2.0001")  # half of the limit; the original is exact
    assert not all(check.ok for check in reference.check(other, None))
    again = _reference(tmp_path, body % "2")
    again.budget = Budget(1.0, 0.0, remaining=0.0)
    assert all(check.ok for check in again.check(other, None))
    assert "accounts for differences within the limit" in again.left_out()[0]
    above = write(tmp_path / "above.onnx", body % "2.01")  # a verdict is never left out
    assert not any(check.ok for check in again.check(above, None) if check.case.endswith("seed 1"))


def test_other_seeds_are_left_out_where_each_case_takes_float64_and_there_is_no_time(tmp_path: Path) -> None:
    """Of an original that loses digits, so that no output is right without an account."""
    body = "g (float[n, 32] x) => (float[n, 32] y) <float c = {65536}> { s = Add(x, c) d = Sub(s, c) y = Tanh(d) }"
    right = write(tmp_path / "right.onnx", "g (float[n, 32] x) => (float[n, 32] y) { y = Tanh(x) }")
    wrong = write(tmp_path / "wrong.onnx", "g (float[n, 32] x) => (float[n, 32] y) { y = Sin(x) }")
    seeds = []
    for budget in (Budget(1e-4, 0.0), Budget(1.0, 0.0, remaining=0.0)):
        reference = _reference(tmp_path, body)
        reference.budget = budget
        checks = reference.check(right, None)
        assert all(check.ok for check in checks)
        seeds.append({check.case[-6:] for check in checks})
        assert ("noise of other seeds" in str(reference.left_out())) is (budget.run > 0.5)
        assert {check.case for check in reference.check(right, None)} == {check.case for check in checks}
        assert not all(check.ok for check in reference.check(wrong, None))
    assert seeds == [{"seed 0", "seed 1", "seed 2"}, {"seed 0"}]


def test_costs_grow_with_the_inputs() -> None:
    budget = Budget(0.02, 0.0, remaining=0.2)
    assert not budget.takes_case(100.0)
    assert [budget.takes_case(1.0) for _ in range(4)] == [True, True, True, False]
    assert budget.takes_case(0.1)
    quick = Budget(0.01, 0.0, remaining=0.0)
    assert quick.takes_case(1.0) and quick.takes_case(20.0) and not quick.takes_case(100.0)


@pytest.mark.parametrize("milliseconds", [0.2, 0.9, 1.1, 1.4, 2.0])
def test_a_small_model_tries_many_elements_on_a_busy_machine(milliseconds: float) -> None:
    """Most of its run is launches and threads, which take five times as long beside other work."""
    assert Budget(milliseconds / 1e3, milliseconds / 2e3).takes_case(164.0)


def test_more_samples_alone_take_as_long_each(tmp_path: Path) -> None:
    assert not Budget(0.02, 0.0).takes_case(13.0)
    assert Budget(0.02, 0.0).takes_case(13.0, by_samples=True)
    known = _reference(tmp_path).traits
    assert edges.has_more_samples_alone(known, {"batch": 5, "n": 7}, {"batch": 65, "n": 7})
    assert not edges.has_more_samples_alone(known, {"batch": 5, "n": 7}, {"batch": 65, "n": 8})


@pytest.mark.parametrize(
    "text",
    [
        "g (float[batch, tokens, 24] x, float[batch, tokens, 24] u) => (float[batch, tokens, 24] y) { y = Mul(x, u) }",
        "g (float[batch, tokens, 40] x, float[batch, tokens, keys] s) => "
        "(float[batch, tokens, 40] y, float[batch, tokens, keys] z) { y = Tanh(x) z = Tanh(s) }",
        "g (float[batch, 3, h, w] x) => (float[batch, 3, h, w] y) { y = Tanh(x) }",
        "g (float[batch, 24] x) => (float[batch, 24] y) { y = Tanh(x) }",
    ],
)
def test_every_tensor_with_a_batch_and_a_length_has_many_elements_in_a_case(tmp_path: Path, text: str) -> None:
    reference = _reference(tmp_path, text)
    (case,) = [case for case in reference.outputs if case.kind == edges.MANY]
    assert all(array.size >= 1 << 16 for array in reference.outputs[case].values())
    assert all(array.size >= 1 << 16 for array in reference.feeds(case).values())


IMAGES = "g (float[batch, 3, h, w] x) => (float[batch, 3, p, q] y) { %s }"


def test_each_side_of_an_image_alone_is_long(tmp_path: Path) -> None:
    """Of one sample, which takes little time; of a network that refuses odd sizes, at an even one."""
    for body, side in (
        ("y = Tanh(x)", 259),
        ("a = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x) b = Resize(a, , s) y = Add(x, b)", 288),
    ):
        text = IMAGES % body
        reference = _reference(tmp_path, text.replace("{ a", "<float[4] s = {1, 1, 2, 2}> { a"))
        sizes = [dict(case.sizes) for case in reference.outputs if case.kind == edges.SIDE]
        assert [(row["batch"], max(row["h"], row["w"])) for row in sizes] == [(1, side)] * 2
        assert {row["h"] == side for row in sizes} == {True, False}
        assert all(min(row["h"], row["w"]) < 100 for row in sizes)


def test_images_have_elements_enough_for_what_is_pooled(tmp_path: Path) -> None:
    reference = _reference(tmp_path, IMAGES % "y = Tanh(x)")
    (case,) = [case for case in reference.outputs if case.kind == edges.MANY]
    assert reference.feeds(case)["x"].size >= 1 << 18


def test_each_dim_alone_is_1_and_0(tmp_path: Path) -> None:
    text = "g (float[b, past, 4] x, float[b, new, 4] z) => (float[b, t, 4] y) { y = Concat<axis = 1>(x, z) }"
    reference = _reference(tmp_path, text)

    def sizes(kind: str) -> set[tuple[int, ...]]:
        return {tuple(size for _, size in case.sizes) for case in reference.outputs if case.kind == kind}

    assert sizes(edges.EMPTY) == {(0, 9, 9), (5, 0, 9), (5, 9, 0), (5, 0, 0)}
    assert sizes(edges.ONE) == {(5, 1, 9), (5, 9, 1), (5, 1, 1), (1, 1, 1)}

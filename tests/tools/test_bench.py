"""bench: what is compared and timed with what; how fast anything is lies outside of a test."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

import onnxopt
from onnxopt.errors import ModelError, UsageError, VerificationError
from onnxopt.tools import bench
from onnxopt.tools.commands import bench as bench_command
from tests.support.small_models import CHAIN, RANDOM, TOKENS, write

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def made(tmp_path: Path, artifact: Path) -> Path:
    return onnxopt.optimize(write(tmp_path / "chain.onnx", CHAIN), artifact, archs=()).path


def test_against_the_original_by_default(made: Path) -> None:
    result = onnxopt.bench(made, iterations=7)
    assert result.against == f"original {made.parent / 'chain.onnx'}"
    assert result.case == "batch=1, seed 0"
    for timing in (result.baseline, result.artifact):
        assert timing.runs == 7
        assert 0 < timing.best <= timing.p50 <= timing.p95
    assert result.ratio == pytest.approx(result.baseline.p50 / result.artifact.p50, rel=0.01)
    assert result.compared <= 1


def test_opening_and_the_first_result_are_timed_too(made: Path) -> None:
    result = onnxopt.bench(made, iterations=3)
    for timing in (result.baseline, result.artifact):
        assert timing.open_ms is not None and timing.first_ms is not None
        assert 0 < timing.open_ms < timing.first_ms
    text = "\n".join(bench_command.table(dataclasses.replace(result, requests=8)))
    per_second = f"{8e3 / result.artifact.mean:,.1f}"
    assert f" {per_second} " in text.splitlines()[2] and f" {result.artifact.open_ms:.1f} " in text.splitlines()[2]


def test_a_changed_original_is_not_taken_for_it(made: Path) -> None:
    write(made.parent / "chain.onnx", TOKENS)
    result = onnxopt.bench(made, iterations=3)
    assert result.against.startswith("the artifact's own model without the library")


def test_against_another_artifact(made: Path, tmp_path: Path) -> None:
    other = onnxopt.optimize(made.parent / "chain.onnx", tmp_path / "other", archs=()).path
    assert onnxopt.bench(made, against=other, iterations=3).against == f"artifact {other}"


def test_nothing_is_timed_where_outputs_differ(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_time_in_turn", lambda *_: pytest.fail("timed"))
    wrong = write(tmp_path / "wrong.onnx", CHAIN.replace("Sub(c, a)", "Sub(a, c)"))
    with pytest.raises(VerificationError, match="not timed, its outputs differ: output y"):
        onnxopt.bench(made, against=wrong)


def test_shapes_and_iterations(made: Path) -> None:
    assert onnxopt.bench(made, shapes={"x": (33, 8)}, iterations=3).case == "batch=33, seed 0"
    with pytest.raises(UsageError, match="1 or more"):
        onnxopt.bench(made, iterations=0)
    with pytest.raises(ModelError, match="no such file"):
        onnxopt.bench(made, against=made / "nothing.onnx")


def test_typical_sizes_and_random_models(tmp_path: Path) -> None:
    for name, text, case in (("t", TOKENS, "batch=1, sequence=128"), ("r", RANDOM, "n=128")):
        made = onnxopt.optimize(write(tmp_path / f"{name}.onnx", text), tmp_path / name, archs=()).path
        assert onnxopt.bench(made, iterations=3).case == f"{case}, seed 0"


def test_the_two_run_in_turn() -> None:
    order: list[str] = []

    def timed(name: str) -> float:
        order.append(name)
        return 0.02

    first, second = bench._time_in_turn(lambda: timed("a"), lambda: timed("b"), 9, 1.0)
    assert first.runs == second.runs == 9
    changes = sum(x != y for x, y in itertools.pairwise(order))
    assert changes >= 5
    assert first.p50 == 20.0

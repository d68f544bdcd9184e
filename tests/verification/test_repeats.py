"""Elements that change from run to run of the original are not compared, all others are."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from onnxopt.runtime import sessions
from onnxopt.verification.compare import Limit, compare, excess_of
from onnxopt.verification.repeats import Repeats
from onnxopt.verification.sampling.cases import Case

_LIMIT, _CASES = Limit(1e-2), (Case((("batch", 2),), 0), Case((("batch", 3),), 0))
_EXPECTED = np.linspace(1, 2, 12, dtype=np.float32).reshape(3, 4)


def _repeats(
    monkeypatch: pytest.MonkeyPatch, runs: list[Any], provider: str = sessions.CUDA
) -> tuple[Repeats, list[str]]:
    notes: list[str] = []
    original = types.SimpleNamespace(
        provider=provider, library=None, model=None, notes=notes, outputs={case: {"y": _EXPECTED} for case in _CASES},
        traits=types.SimpleNamespace(random=False, traps=False), feeds=lambda case: {"case": case},
        limit=lambda name: _LIMIT, open=lambda *_, **__: "session",
    )  # fmt: skip
    waiting = iter(runs)
    monkeypatch.setattr(sessions, "run", lambda session, feeds: next(waiting))
    return Repeats(original), notes  # type: ignore[arg-type]


def test_what_changes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    unwritten = _EXPECTED.copy()
    unwritten[2, :3] = (7, np.nan, -np.inf)  # the last element is what it was by chance
    repeats, notes = _repeats(monkeypatch, [{}, {"y": _EXPECTED}, {}, {"y": unwritten}])
    actual = _EXPECTED.copy()
    actual[2], actual[0, 0] = 50, 5
    kept = repeats.without_changing(_CASES[0], "y", actual)
    assert kept[0, 0] == 5 and (kept[2] == _EXPECTED[2]).all()
    assert not compare(_EXPECTED, kept, _LIMIT).ok
    assert "4 of 12 elements of y are not compared" in notes[0] and len(notes) == 1
    assert (repeats.without_changing(_CASES[0], "y", actual) == kept).all()  # and runs nothing again
    assert len(notes) == 1


def test_results_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    near = _EXPECTED * np.float32(1 + 1e-4)
    repeats, notes = _repeats(monkeypatch, [{}, {"y": near}, {}, {"y": near}])
    actual = _EXPECTED + 1
    assert repeats.without_changing(_CASES[0], "y", actual) is actual
    assert not notes


def test_the_cpu_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    repeats, _ = _repeats(monkeypatch, [], sessions.CPU)
    actual = _EXPECTED + 1
    assert repeats.without_changing(_CASES[0], "y", actual) is actual


def test_excess_of_infinities() -> None:
    inf, nan = np.inf, np.nan
    a, b = np.array([1.0, inf, inf, nan, nan, 2.0]), np.array([1.02, inf, -inf, nan, 1.0, inf])
    excess = excess_of(a, b, Limit(1e-2))
    assert 0 < excess[0] < 2 and list(excess[[1, 3]]) == [0, 0] and np.isinf(excess[[2, 4, 5]]).all()

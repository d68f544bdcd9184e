"""Progress: what a terminal and a log show while a command works."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from onnxopt import phases
from onnxopt.tools import progress


def test_progress_is_plain_lines_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(quiet=True) as advance:
        assert advance is None
    with progress.shown() as advance:
        assert advance is not None
        advance("compile", "", 0, 0)  # in the first second
        monkeypatch.setattr(phases, "_LOG_AFTER", 0.0)
        for call in (("load", "", 0, 0), ("compile", "", 0, 0), ("compile", "", 1, 12), ("verify", "", 0, 4)):
            advance(*call)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Compiling kernels\nVerifying: 0 of 4\n"


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for still in (False, True):
        before = set(threading.enumerate())
        with progress.shown(still=still) as advance:
            assert advance is not None
            advance("compile", "[red]name", 3, 12)
            assert (set(threading.enumerate()) <= before) == still
        assert "[red]name: 3 of 12" in capsys.readouterr().err


def test_progress_counts_and_says_the_time_left() -> None:
    now = [0.0]
    steps = phases.Steps(lambda: now[0])

    def at(seconds: float, done: int, write: Callable[[str, str, int, int], str] = steps.text) -> str:
        now[0] = seconds
        return write("compile", "a.onnx", done, 12)

    assert at(0.5, 0, steps.in_log) == ""
    assert at(0.9, 1) == "Compiling kernels: a.onnx: 1 of 12"  # too early to say
    assert at(4.5, 4, steps.in_log) == "Compiling kernels: a.onnx: 4 of 12, about 8 s left"
    assert at(5.0, 5, steps.in_log) == ""  # soon behind the last one
    assert at(10.5, 10, steps.in_log) == "Compiling kernels: a.onnx: 10 of 12, about 2 s left"
    assert at(11.0, 12) == "Compiling kernels: a.onnx: 12 of 12"
    assert at(300.5, 6) == "Compiling kernels: a.onnx: 6 of 12, about 5 min left"
    assert steps.text("fuse", "", 0, 0) == "Finding chains"


def test_phases_that_come_in_turn_are_said_once_in_a_log() -> None:
    now = [10.0]
    steps = phases.Steps(lambda: now[0])
    now[0] = 12.0
    lines = [steps.in_log(*call) for _ in range(9) for call in (("quantize", "12 nodes", 0, 0), ("verify", "", 0, 0))]
    assert [line for line in lines if line] == ["Quantizing: 12 nodes", "Verifying"]


def test_a_notebook_has_a_line_that_is_empty_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(data: dict[str, str], **_: object) -> SimpleNamespace:
        shown.append(data["text/plain"])
        return SimpleNamespace(update=display)

    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with phases.in_notebook() as advance:
        assert advance is not None
        advance("compile", "", 1, 3)
    assert shown == ["", "Compiling kernels: 1 of 3", ""]
    del kernel.kernel  # a terminal's IPython
    with phases.in_notebook() as advance:
        assert advance is None

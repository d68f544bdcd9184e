"""Runs of the original whose numbers change in their last place, made one after the other as they are asked for.

First the float inputs alone change, which takes plain runs of the original; then results inside the model do
(rounding/last_places.py). A model that draws random numbers draws them in the order of its runs, so all cases up to
the one that is asked for are run, in their order, with its seeds fixed.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.compare import Array, is_float
from onnxopt.verification.early_reference import config_of
from onnxopt.verification.rounding import last_places
from onnxopt.verification.rounding.without_rounding import Original
from onnxopt.verification.sampling.cases import Case
from onnxopt.verification.sampling.seeding import seeded

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_INPUT_RUNS = 2  # runs in which inputs alone change
_RUNS = 4  # in which results do
_STRONG = 8.0  # times the last places, where these decide a shape

Outputs = Mapping[str, Array]


class Changing:
    """note: takes what is not run, and why."""

    def __init__(self, original: Original, note: Callable[[str, Exception], None]) -> None:
        self._original, self._note = original, note
        self._runs: dict[Case, list[Outputs]] = {}
        self._pending: dict[Case, Iterator[Outputs]] = {}
        self._sessions: dict[str, InferenceSession | None] = {}
        self._in_order = [_InOrder(original, draw, note) for draw in range(_RUNS)]

    def runs(self, case: Case) -> Iterator[Outputs]:
        """The runs of a case; each is made once. Fewer where ONNX Runtime refuses some."""
        runs = self._runs.setdefault(case, [])
        rest = self._pending.setdefault(case, self._make(case))
        number = 0
        while True:
            if number == len(runs):
                run = next(rest, None)
                if run is None:
                    return
                runs.append(run)
            yield runs[number]
            number += 1

    def strong(self, case: Case) -> Iterator[Outputs]:
        """Runs whose results change by more than last places, for outputs whose shape they decide."""
        if not self._original.traits.random:
            for _ in range(_RUNS):
                yield from self._run("strong", self._original.feeds(case))

    def _make(self, case: Case) -> Iterator[Outputs]:
        if self._original.traits.random:
            for drawn in self._in_order:
                run = drawn.outputs(case)
                if run is None:
                    return
                yield run
            return
        for number in range(_INPUT_RUNS):
            feeds = self._original.feeds(case)
            changed = {name: _changed(value, number, name) for name, value in feeds.items()}
            if all(changed[name] is value for name, value in feeds.items()):
                break
            yield from self._run("inputs", changed)
        for _ in range(_RUNS):
            yield from self._run("results", self._original.feeds(case))

    def _run(self, what: str, feeds: Mapping[str, Any]) -> Iterator[Outputs]:
        """One run; none where ONNX Runtime refuses it."""
        try:
            if what not in self._sessions:
                self._sessions[what] = None
                self._sessions[what] = self._open(what)
            session = self._sessions[what]
            if session is not None:
                yield sessions.run(session, feeds)
        except (RunError, last_places.NotChanged) as error:
            self._note("without the spread of its results", error)

    def _open(self, what: str) -> InferenceSession:
        original = self._original
        if what == "inputs":
            return original.open(original.model, library=original.library)
        with tempfile.TemporaryDirectory(dir=original.folder) as folder:
            path = last_places.change(original.model, Path(folder), times=_STRONG if what == "strong" else 1.0)
            return original.open(path, library=original.library, reuse_memory=False)


class _InOrder:
    """Runs of a model that draws random numbers, with one draw of what changes."""

    def __init__(self, original: Original, draw: int, note: Callable[[str, Exception], None]) -> None:
        self._original, self._draw, self._note = original, draw, note
        self._ran: dict[Case, Outputs] = {}
        self._session: InferenceSession | None = None
        self._failed = False

    def outputs(self, case: Case) -> Outputs | None:
        """None where ONNX Runtime refuses it, or a case that comes earlier."""
        try:
            for earlier in self._original.outputs:
                if case in self._ran or self._failed:
                    break
                if earlier not in self._ran:
                    self._session = self._session or self._open()
                    self._ran[earlier] = sessions.run(self._session, self._original.feeds(earlier))
        except (RunError, last_places.NotChanged) as error:
            self._failed = True
            self._note("without the spread of its results", error)
        return self._ran.get(case)

    def _open(self) -> InferenceSession:
        original = self._original
        with tempfile.TemporaryDirectory(dir=original.folder) as folder:
            copy = seeded(original.model, Path(folder) / "seeded.onnx")
            (Path(folder) / "changed").mkdir()
            path = last_places.change(copy, Path(folder) / "changed", self._draw)
            setup = sessions.SessionSetup(config_of(original.traits), reuse_memory=False)
            return sessions.open_session(path, provider=original.provider, library=original.library, setup=setup)


def _changed(value: Any, number: int, name: str) -> Any:
    """An input whose floats changed in their last place; the same object where it has none that could."""
    if isinstance(value, list):
        changed = [_changed(array, number, f"{name} {k}") for k, array in enumerate(value)]
        return value if all(a is b for a, b in zip(changed, value, strict=True)) else changed
    change = last_places.CHANGE_OF.get(str(value.dtype)) if is_float(value) else None
    if change is None or not value.size:
        return value
    random = np.random.default_rng([number, zlib.crc32(name.encode())])
    wide = value.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        factors = 1.0 - change * random.random(value.shape)
        return np.where(wide == np.round(wide), wide, wide * factors).astype(value.dtype)

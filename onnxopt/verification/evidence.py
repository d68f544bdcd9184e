"""What speaks for an output that differs from the original's: float64, or that the original differs from itself.

One other run of the original with the same kernels is no measure of its error. So the original is run in float64, from
which a right kernel is about as far as the original, and with results that change in their last place, which moves an
output about as far as another order of additions does. Both are run only for cases whose outputs are questioned.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxopt.graph import read
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.check import TIMES_SPREAD
from onnxopt.verification.compare import Array, Difference, compare, relative_to_limit
from onnxopt.verification.early_reference import config_of
from onnxopt.verification.rounding import in_float64
from onnxopt.verification.rounding.changing import Changing
from onnxopt.verification.rounding.drift import drift, spread_of_drift
from onnxopt.verification.rounding.exactness import TIMES_OWN, FromFloat64
from onnxopt.verification.rounding.movement import Movement, share_of
from onnxopt.verification.rounding.widening import NotWidened
from onnxopt.verification.rounding.without_rounding import Original
from onnxopt.verification.sampling.cases import Case

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# Of the limit, from which on a difference of a float32 or float64 model has to be accounted for: 1e-5 for float32.
QUESTIONED = 0.1
_LARGEST = 1 << 29  # bytes of a model that is held in float64 beside others
_ATTEMPTS = 8  # each finds one more operator that takes no float64
_OPERATOR = re.compile(r"implementation for (\w+)\(|of operator \((\w+)\)")


def questions(difference: Difference, precision: str) -> bool:
    """Whether an output differs by more than what needs no account. precision: of the model."""
    if difference.excess is None:
        return True
    is_wide = precision in ("float32", "float64") and "float" in difference.dtype
    return difference.excess > (QUESTIONED if is_wide else 1.0)


@dataclasses.dataclass(frozen=True)
class Spread:
    """How far the original exceeds the limit against itself; None where it does so beyond comparison."""

    excess: float | None


class Evidence:
    """The original in float64, and with results that change. Both are run for a case when it is asked for first."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self._exact: dict[Case, Mapping[str, Array]] = {}
        self._double: InferenceSession | None = None
        self._tried_double = False
        self._changing = Changing(original, self._note)

    def from_float64(self, case: Case, name: str, actual: Array) -> FromFloat64 | None:
        """How far an output and the original's are from float64; None where that says nothing."""
        original = self._original
        if original.traits.precision != "float32" or original.traits.random or original.traits.traps:
            return None
        expected = original.outputs[case][name]
        if expected.dtype != np.float32 or actual.dtype != expected.dtype:
            return None
        if case not in self._exact:
            self._exact[case] = self._run_double(case)
        exact = self._exact[case].get(name)
        if exact is None:
            return None
        limit = original.limit(name)
        excess, own = (compare(exact, a.astype(np.float64), limit).excess for a in (actual, expected))
        if excess is None or own is None:
            return None
        result = FromFloat64(excess, own, "float64")
        if excess > 1.0 and result.ok:
            actual_distance, original_distance = (relative_to_limit(exact, a, limit) for a in (actual, expected))
            if share_of(actual_distance, original_distance, TIMES_OWN) > 1.0:
                return None
        if excess > 1.0 and not result.is_telling(limit.relative):
            allowed = 2 * abs(drift(exact, expected)) + spread_of_drift(exact, expected) + limit.relative
            if abs(drift(exact, actual)) > allowed:
                return None
        return result

    def is_known(self, case: Case) -> bool:
        """Whether it was run in float64 already, or does not run so."""
        return case in self._exact or (self._tried_double and self._double is None)

    def spread(self, case: Case, name: str, excess: float | None, actual: Array) -> Spread | None:
        """How far the original's output moves at a case; None where it does not run with results that change.

        excess: what has to be accounted for. Of several runs no more are made than show that much. Where a few elements
        move so far and more of `actual` do, or the output as a whole moves by less than `actual` does, the spread is
        what excuses no more than that.
        """
        original, is_known = self._original, False
        expected, limit = original.outputs[case][name], original.limit(name)
        moved = Movement(expected, actual, limit)
        if original.traits.traps:
            return None
        # ONNX Runtime's own operators are up to 5 units from exact, which a step of a code or a count makes visible.
        runs = self._changing.runs(case)
        for run in itertools.chain(runs, self._changing.strong(case)) if excess is None else runs:
            if name not in run:
                continue
            distance = compare(expected, run[name], limit).excess
            if distance is None:
                if _is_between(actual.shape, expected.shape, run[name].shape):
                    self._note_unstable(case, name, expected, run[name])
                    return Spread(None)
                is_known = True
                continue
            moved.add(distance, run[name])
            is_known = True
            if excess is not None and excess <= TIMES_SPREAD * moved.worst and moved.accounts(excess) >= excess:
                return Spread(moved.worst)
        if not is_known:
            return None
        return Spread(moved.worst if excess is None else moved.accounts(excess) / TIMES_SPREAD)

    def _note_unstable(self, case: Case, name: str, expected: Array, changed: Array) -> None:
        what = "NaN or infinity elsewhere"
        if changed.shape != expected.shape:
            what = f"the shape {list(changed.shape)} instead of {list(expected.shape)}"
        note = f"{self._original.provider}: the original is unstable at {case}: last places give {name} {what}"
        if not any(name in text and "unstable" in text for text in self._original.notes):
            self._original.notes.append(note)

    def _run_double(self, case: Case) -> Mapping[str, Array]:
        if self._double is None and not self._tried_double:
            self._tried_double = True
            try:
                self._double = self._open_double()
            except (RunError, NotWidened) as error:
                self._note("not in float64", error)
        if self._double is None:
            return {}
        feeds = {name: _each_double(value) for name, value in self._original.feeds(case).items()}
        try:
            return sessions.run(self._double, feeds)
        except RunError as error:
            self._note("not in float64", error)
            return {}

    def _open_double(self) -> InferenceSession:
        """A session on the CPU, without ONNX Runtime's optimizations, some of which know float32 alone."""
        original, single = self._original, set[str]()
        if read.load(original.model).bytes > _LARGEST:
            raise NotWidened("its weights are too large to be held twice")
        for _ in range(_ATTEMPTS):
            with tempfile.TemporaryDirectory(dir=original.folder) as folder:
                path, _ = in_float64.double(original.model, Path(folder), single)
                try:
                    setup = sessions.SessionSetup(config_of(original.traits))
                    return sessions.open_session(path, optimize=False, setup=setup)
                except RunError as error:
                    operator = _OPERATOR.search(str(error))
                    name = "" if operator is None else operator[1] or operator[2]
                    if not name or name in single:
                        raise
                    single.add(name)
        raise NotWidened(f"too many of its operators take no float64: {', '.join(sorted(single))}")

    def _note(self, how: str, error: Exception) -> None:
        note = f"{self._original.provider}: compared with the unchanged original, {how}: {error}"
        if note not in self._original.notes:
            self._original.notes.append(note)


def _each_double(value: Any) -> Any:
    if isinstance(value, list):
        return [_each_double(array) for array in value]
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _is_between(shape: tuple[int, ...], original: tuple[int, ...], changed: tuple[int, ...]) -> bool:
    """Whether a shape is no farther from the original's than a few times what a change moves it."""
    if not len(shape) == len(original) == len(changed):
        return False
    return all(abs(a - b) <= TIMES_SPREAD * abs(c - b) for a, b, c in zip(shape, original, changed, strict=True))

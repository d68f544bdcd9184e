"""Elements of an original's outputs that change from run to run, which nothing can be compared with.

ONNX Runtime's fused attention on CUDA leaves results of tokens unwritten that a mask of lengths hides: they hold
what was in memory. The original is run again where an output of another model differs from its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import CPU, RunError
from onnxopt.verification.compare import Array, excess_of, is_float
from onnxopt.verification.rounding.without_rounding import Original
from onnxopt.verification.sampling.cases import Case

_OTHERS = 2  # cases that are run between
_SHARE = 0.1  # of a row, such as a token, that changes as a whole
_CHANGED = 0.1  # of the limit: what kernels that add in any order differ by from run to run is less


class Repeats:
    """Runs the original again, once a case, after other cases and with results in other places of the memory."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self._runs: dict[Case, list[dict[str, Array]]] = {}

    def without_changing(self, case: Case, name: str, actual: Array) -> Array:
        """An output with the original's elements where these change from run to run; the same where none does."""
        original = self._original
        expected = original.outputs[case][name]
        if original.provider == CPU or original.traits.random or original.traits.traps or not is_float(expected):
            return actual
        changes = np.zeros(expected.shape, np.bool_)
        for run in self._again(case):
            if name in run and run[name].shape == expected.shape == actual.shape:
                changes |= excess_of(expected, run[name], original.limit(name)) > _CHANGED
        if not changes.any():
            return actual
        if changes.ndim > 1:  # what was not written may hold the same number by chance
            changes |= changes.mean(-1, keepdims=True) > _SHARE
        count = f"{np.count_nonzero(changes):,} of {changes.size:,} elements of {name}"
        note = (
            f"{original.provider}: the original gives other results from run to run at {case}: {count} are not compared"
        )
        if note not in original.notes:
            original.notes.append(note)
        return np.where(changes, expected, actual)

    def _again(self, case: Case) -> list[dict[str, Array]]:
        if case not in self._runs:
            try:
                self._runs[case] = self._run(case)
            except RunError:
                self._runs[case] = []
        return self._runs[case]

    def _run(self, case: Case) -> list[dict[str, Any]]:
        """Runs of a case, between which others leave their results in the memory."""
        original = self._original
        others = sorted((other for other in original.outputs if other != case), key=lambda c: c.sizes != case.sizes)
        runs = []
        for reuse_memory in (True, False):
            session = original.open(original.model, library=original.library, reuse_memory=reuse_memory)
            for other in others[:_OTHERS]:
                sessions.run(session, original.feeds(other))
                runs.append(sessions.run(session, original.feeds(case)))
        return runs

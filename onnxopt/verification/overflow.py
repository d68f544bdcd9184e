"""Whether a 16-bit original overflows at a case of large values, or would at values a quarter larger.

Between a MatMul and a Relu, values of such a case may reach what 16 bits hold at most. Which of them become infinite is
decided by the last place of a sum there, and results are zeros or NaN in other places than those of a right kernel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.compare import Array, compare, is_float
from onnxopt.verification.rounding import widening
from onnxopt.verification.rounding.without_rounding import Original, each
from onnxopt.verification.sampling import edges
from onnxopt.verification.sampling.cases import Case

_HEADROOM = 1.25
_APART = 25.0  # times the limit: half of the output's magnitude for float16, more than roundings make of it


class Overflow:
    """Asks each case once: the original in 16 bits beside the same in float32, at larger inputs."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self._outcomes: dict[Case, bool] = {}

    def happens(self, case: Case) -> bool:
        """Whether the original overflows; no where it has no form in float32."""
        if case not in self._outcomes:
            try:
                self._outcomes[case] = self._ask(case)
            except (RunError, widening.NotWidened):
                self._outcomes[case] = False
            if self._outcomes[case]:
                note = f"{self._original.provider}: the original overflows 16 bits at {case}, or nearly; NaN, infinity "
                self._original.notes.append(f"{note}and what they leave are not compared there")
        return self._outcomes[case]

    def _ask(self, case: Case) -> bool:
        original, feeds = self._original, self._original.feeds(case)
        free = {t.name for t in original.traits.inputs if edges.is_free(t, original.traits.uses.get(t.name, ()))}
        larger = {name: _times(value) if name in free else value for name, value in feeds.items()}
        exact = self._run(larger, rounded=False)
        # On the CPU, ONNX Runtime computes in float32 what has no kernel of float16, and rounds where it must.
        plain = sessions.run(original.open(original.model, library=original.library), larger)
        return any(self._differ(exact, actual) for actual in (plain, self._run(larger, rounded=True)))

    def _run(self, feeds: dict[str, Any], *, rounded: bool) -> dict[str, Array]:
        """The original in float32. rounded: each result rounded to 16 bits."""
        original = self._original
        with tempfile.TemporaryDirectory(dir=original.folder) as folder:
            path = widening.widen(original.model, Path(folder), rounded=rounded)
            session = original.open(path, library=original.library, optimize=not rounded, integer_kernels=False)
            return sessions.run(session, {name: each(widening.widened, value) for name, value in feeds.items()})

    def _differ(self, exact: dict[str, Array], actual: dict[str, Array]) -> bool:
        for name, array in actual.items():
            if is_float(array):
                limit = self._original.limit(name)
                excess = compare(widening.widened(exact[name]), widening.widened(array), limit).excess
                if excess is None or excess > _APART:
                    return True
        return False


def _times(value: Any) -> Any:
    return value * np.asarray(_HEADROOM, value.dtype) if isinstance(value, np.ndarray) and is_float(value) else value

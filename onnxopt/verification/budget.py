"""The time that verification adds to noise at usual sizes: one budget of edge cases, and of runs in float64.

Costs are predicted from the fastest plain run of the original, so that a busy machine tries what a quiet one does:
where a plain run takes 10 ms or less, no edge case is left out for others. What a verdict needs is never left out.
"""

from __future__ import annotations

import dataclasses

SECONDS = 1.0  # of all that is added, beside plain runs
_CASE_SECONDS = 2.0  # of each case of a quick model
QUICK = 0.01  # seconds of a plain run, up to which all usual cases and edges are run
_RUNS = 3  # of a case: the original, and the other model with its library and without
_GROWTH = 1.3  # exponent of the time that a run takes, by the bytes of its inputs
_FIXED, _CHANGES = 2e-3, 0.1  # seconds of a run that no size changes but by this share: launches, threads
_SMALLEST = 0.25  # of a plain run: what the smallest run takes
_TIMES_IN_FLOAT64 = 6.0  # a run in float64, in plain runs
_MAKING_FLOAT64 = 10.0  # its session, in plain runs


@dataclasses.dataclass
class Budget:
    """run, draw: seconds of a plain run of the original, and of drawing its inputs. left_out: what there was no time
    for."""

    run: float
    draw: float
    remaining: float = SECONDS
    left_out: list[str] = dataclasses.field(default_factory=list)
    _has_float64: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether a plain run was timed."""
        return self.run > 0.0

    def takes_case(self, growth: float, *, by_samples: bool = False) -> bool:
        """Whether there is time for a case; it is spent then. growth: bytes of its inputs, of those of a plain run.

        by_samples: there are more samples alone, each of which takes as long as before.
        """
        seconds = _RUNS * self._grown(self.run, growth, by_samples) + self._grown(self.draw, growth, by_samples)
        return seconds <= _CASE_SECONDS if self.run <= QUICK else self._spend(seconds)

    @staticmethod
    def _grown(seconds: float, growth: float, by_samples: bool) -> float:
        """What takes these seconds at plain inputs, at inputs of growth times their bytes."""
        if growth <= 1.0:
            return seconds * max(growth, _SMALLEST)
        fixed = min(seconds, _FIXED)
        return fixed * (1.0 + _CHANGES * growth) + (seconds - fixed) * growth ** (1.0 if by_samples else _GROWTH)

    def takes_float64(self) -> bool:
        """Whether there is time for a case in float64 that no verdict needs."""
        making = 0.0 if self._has_float64 else _MAKING_FLOAT64
        is_owned = self._spend((making + _TIMES_IN_FLOAT64) * self.run)
        self._has_float64 |= is_owned
        return is_owned

    def leave_out(self, what: str) -> None:
        if what not in self.left_out:
            self.left_out.append(what)

    def note(self) -> str:
        """What was left out, "" where nothing was."""
        if not self.left_out:
            return ""
        return f"left out for time or memory, where a plain run takes {self.run:.2g} s: {', '.join(self.left_out)}"

    def _spend(self, seconds: float) -> bool:
        if seconds > self.remaining:
            return False
        self.remaining -= seconds
        return True

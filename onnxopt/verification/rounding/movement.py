"""Movement: how far an output of the original moves where last places change, and how much of another it accounts for.

The worst element is no measure of all: of large inputs, last places move a few elements far that lie near the middle of
a Tanh, and a wrong kernel may move all others as far. So elements are compared by rank as well.
"""

from __future__ import annotations

import numpy as np

from onnxopt.verification.check import TIMES_SPREAD
from onnxopt.verification.compare import Array, Limit, is_float, norm, relative_to_limit
from onnxopt.verification.rounding.drift import drift

_FLOOR = 0.1  # of the limit: what needs no account
_TIMES_ELEMENTS = 8  # so many times as many elements may be as far off


class Movement:
    """Of an output of the original at one case, for another model's output.

    worst: of all elements and runs.
    """

    def __init__(self, expected: Array, actual: Array, limit: Limit) -> None:
        self._expected, self._actual, self._limit, self.worst = expected, actual, limit, 0.0
        self._is_float = is_float(expected) and is_float(actual) and actual.shape == expected.shape
        self._ranked = np.zeros(0)  # in descending order, the most of all runs
        self._whole = 0.0

    def add(self, excess: float, run: Array) -> None:
        """One more run of the original. excess: how far its worst element is above the limit."""
        self.worst = max(self.worst, excess)
        if self._is_float:
            ranked = relative_to_limit(self._expected, run, self._limit)
            shared = min(len(ranked), len(self._ranked)) if len(self._ranked) else len(ranked)
            self._ranked = np.maximum(ranked[:shared], self._ranked[:shared]) if len(self._ranked) else ranked
            self._whole = max(self._whole, abs(drift(self._expected, run)))

    def accounts(self, excess: float) -> float:
        """How much of `excess`, of the other output's worst element, is accounted for.

        That is a few times what moves; where that is more than the limit, by as many elements and in the root mean
        square, and where elements move by more than it, also by the output as a whole.
        """
        if not self._is_float or TIMES_SPREAD * self.worst <= 1.0:
            return TIMES_SPREAD * self.worst
        if (
            self.worst > 1.0
            and abs(drift(self._expected, self._actual)) > TIMES_SPREAD * self._whole + self._limit.relative
        ):
            return min(TIMES_SPREAD * self.worst, TIMES_SPREAD * self._whole / self._limit.relative)
        share = share_of(relative_to_limit(self._expected, self._actual, self._limit), self._ranked, TIMES_SPREAD)
        return TIMES_SPREAD * self.worst if share <= 1.0 else min(TIMES_SPREAD * self.worst, excess / share)


def share_of(actual: Array, own: Array, times: float) -> float:
    """How far off an output is as a whole, as a share of what it may be; it passes up to 1.

    found, own: how far elements of the output and of the original are off, in descending order. times: of the latter
    that the former may be, by rank and in the root mean square.
    """
    actual = actual[: _TIMES_ELEMENTS * len(own)]
    allowed = times * own[np.arange(len(actual)) // _TIMES_ELEMENTS] + _FLOOR
    by_rank = float(np.max(actual / allowed, initial=0.0))
    return max(by_rank, _rms(actual) / (times * _rms(own) + _FLOOR))


def _rms(array: Array) -> float:
    return norm(array) / max(array.size, 1) ** 0.5

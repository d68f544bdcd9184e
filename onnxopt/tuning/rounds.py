"""Is one session faster than another? Both run in turn in one process, and the answer comes with its uncertainty.

Blocks of runs alternate, and every other round begins with the other session, so that clocks, heat and neighbours meet
both alike. A round gives one ratio of medians; what counts is the median of the ratios, and how far it may be off.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable

from onnxopt.benchmark import warm_up

_FEWEST, _MOST = 5, 15
_BLOCK_SECONDS = 0.04
_FEWEST_RUNS = 3
_SIGMAS = 3.0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """ratio: time of the first over time of the second, above 1 where the second is faster. error: standard error.

    first_ms, second_ms: medians of the rounds' medians.
    """

    ratio: float
    error: float
    first_ms: float
    second_ms: float
    rounds: int

    def faster(self, noise: float) -> bool:
        """Whether the second is faster by more than `noise`, a fraction, beyond doubt."""
        return self.ratio - _SIGMAS * self.error > 1.0 + noise

    def slower(self, noise: float) -> bool:
        """Whether the second is slower by more than `noise` beyond doubt."""
        return self.ratio + _SIGMAS * self.error < 1.0 - noise

    def decided(self, noise: float) -> bool:
        """Whether more rounds cannot change the answer to `faster`."""
        return self.faster(noise) or self.ratio + _SIGMAS * self.error < 1.0 + noise


def compare(
    first: Callable[[], float],
    second: Callable[[], float],
    *,
    noise: float | None = None,
    most: int = _MOST,
    block_seconds: float = _BLOCK_SECONDS,
) -> Comparison:
    """Time two functions that run once and return their seconds.

    noise: stop as soon as it is certain whether the second is faster by more than this; None: run every round.
    """
    estimate = min(warm_up(first), warm_up(second))
    runs = max(_FEWEST_RUNS, int(block_seconds / estimate))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < most:
        order = ((first, times[0]), (second, times[1]))
        for run, taken in order if len(times[0]) % 2 == 0 else order[::-1]:
            run()  # the other session's threads still spin, and its data fills the cache
            taken.append(statistics.median(run() for _ in range(runs)))
        if noise is not None and len(times[0]) >= _FEWEST and summarize(*times).decided(noise):
            break
    return summarize(*times)


def summarize(first: list[float], second: list[float]) -> Comparison:
    """The comparison of paired medians, in seconds.

    The error is that of a median of ratios whose spread is the median absolute deviation (1.4826 of it is one standard
    deviation of a normal distribution, and a median's error is 1.2533 times a mean's).
    """
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    middle = statistics.median(ratios)
    deviation = statistics.median(abs(r - middle) for r in ratios)
    return Comparison(
        ratio=middle,
        error=1.2533 * 1.4826 * deviation / math.sqrt(len(ratios)),
        first_ms=statistics.median(first) * 1e3,
        second_ms=statistics.median(second) * 1e3,
        rounds=len(ratios),
    )

"""Is one session faster than another? Both run in turn in one process, and the answer comes with its uncertainty.

Blocks of runs alternate, and every other round begins with the other session, so that clocks, heat and neighbours meet
both alike. A round gives one ratio of medians; what counts is the median of the ratios, and how far it may be off.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable

from onnxopt.tools.timing import warm_up

_MIN, _MIN, _MAX = 3, 7, 15
_BLOCK_SECONDS = 0.04
_MIN_RUNS = 3
MAX_SECONDS = 8.0  # for one comparison; a model that runs for seconds gets fewer rounds, and a wider interval
_TAIL = 0.01
_HOPELESS = 2.0  # times slower when warming up: a few rounds will do


@dataclasses.dataclass(frozen=True)
class Comparison:
    """ratio: time of the first over time of the second, above 1 where the second is faster.

    low, high: the true ratio lies between them with 98 % confidence (from seven rounds on), however the noise is
    distributed. first_ms, second_ms: medians of the rounds' medians.
    """

    ratio: float
    low: float
    high: float
    first_ms: float
    second_ms: float
    rounds: int

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def faster(self, noise: float) -> bool:
        """Whether the second is faster by more than `noise`, a fraction, beyond doubt."""
        return self.low > 1.0 + noise

    def slower(self, noise: float) -> bool:
        """Whether the second is slower by more than `noise` beyond doubt."""
        return self.high < 1.0 - noise

    def decided(self, noise: float) -> bool:
        """Whether more rounds cannot change the answer to `faster`."""
        return self.faster(noise) or self.high < 1.0 + noise


def compare(
    first: Callable[[], float],
    second: Callable[[], float],
    *,
    noise: float | None = None,
    limit: int = _MAX,
    seconds: float = MAX_SECONDS,
) -> Comparison:
    """Time two functions that run once and return their seconds.

    noise: stop as soon as it is certain whether the second is faster by more than this; None: run every round. Stops
    after `seconds` in any case, with three rounds at least.
    """
    started = time.monotonic()
    own, other = warm_up(first), warm_up(second)
    if noise is not None and other > _HOPELESS * own:
        limit = _MIN
    estimate = min(own, other)
    runs = max(_MIN_RUNS if estimate < _BLOCK_SECONDS else 1, int(_BLOCK_SECONDS / estimate))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < limit and (len(times[0]) < _MIN or time.monotonic() - started < seconds):
        order = ((first, times[0]), (second, times[1]))
        for run, run_times in order if len(times[0]) % 2 == 0 else order[::-1]:
            run()  # the other session's threads still spin, and its data fills the cache
            run_times.append(statistics.median(run() for _ in range(runs)))
        if noise is not None and len(times[0]) >= _MIN and summarize(*times).decided(noise):
            break
    return summarize(*times)


def summarize(first: list[float], second: list[float]) -> Comparison:
    """The comparison of paired medians, in seconds.

    The interval is the sign test's: as many of the ratios are left out at either end as a fair coin would put there in
    no more than 1 % of all cases.
    """
    ratios = sorted(a / b for a, b in zip(first, second, strict=True))
    aside = _outliers(len(ratios))
    return Comparison(
        ratio=statistics.median(ratios),
        low=ratios[aside],
        high=ratios[-1 - aside],
        first_ms=statistics.median(first) * 1e3,
        second_ms=statistics.median(second) * 1e3,
        rounds=len(ratios),
    )


def _outliers(count: int) -> int:
    """How many ratios to leave out at each end: so few heads among `count` coins are rarer than _TAIL."""
    total, k = 0.0, 0
    while (total := total + math.comb(count, k) / 2**count) <= _TAIL:
        k += 1
    return max(0, k - 1)

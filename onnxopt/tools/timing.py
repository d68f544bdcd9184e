"""Timing two sessions in turn, so that clocks, heat and other load of the machine affect both alike.

Blocks rather than single runs, and the first of a block not counted: the threads of one session go on spinning for a
moment after a run, which would slow down the other's.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from onnxopt.artifact.measurement import Timing

Run = Callable[[], float]  # runs once and returns the seconds that took

_WARM_UP_SECONDS = 0.3
_BLOCK_SECONDS = 0.05
_BLOCK_OF_CALLERS = 0.25  # longer, because callers begin and end a block one after the other
_MIN, _MAX = 7, 2000
_QUANTILES = 20  # steps of the distribution
# Times are not to be relied on where the middle half of at least so many runs differs by such a factor; runs that are
# shorter differ on an idle machine too.
_UNSTEADY_RUNS, _UNSTEADY_FACTOR, _UNSTEADY_MS = 20, 1.3, 0.1


class _Side(NamedTuple):
    """runs: one for each concurrent caller. times: seconds of each run. busy: seconds of each block."""

    runs: Sequence[Run]
    times: list[float]
    busy: list[float]


def in_turn(
    first: Sequence[Run],
    second: Sequence[Run],
    iterations: int | None,
    seconds: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Timing, Timing]:
    """Time blocks of runs of the one, then of the other.

    first, second: a run for each of the callers, which call at the same time; as many for both. iterations: runs of
    each side, of all its callers together; default as many as fit in `seconds` (7 to 2000).
    """
    progress(0, 0)
    sides = [_Side(runs, [], []) for runs in (first, second)]
    estimate = max(warm_up(side.runs[0]) for side in sides)
    wanted = iterations or min(_MAX, max(_MIN, int(seconds / 2 / estimate)))
    callers = len(first)
    with ThreadPoolExecutor(callers) as pool:
        while len(sides[0].times) < wanted or len(sides[1].times) < wanted:
            for side in sides:
                missing = wanted - len(side.times)
                if callers == 1:
                    _block(side, min(missing, max(3, int(_BLOCK_SECONDS / estimate))))
                elif missing > 0:
                    _block_of_callers(side, pool, missing)
            progress(min(wanted, len(sides[0].times)), wanted)
    return _timing(sides[0]), _timing(sides[1])


def warm_up(run: Run) -> float:
    """Run for 0.3 seconds; returns the seconds of the fastest run."""
    started, best = time.perf_counter(), run()
    while time.perf_counter() - started < _WARM_UP_SECONDS:
        best = min(best, run())
    return best


def unsteady(timed: Timing) -> str | None:
    """What to say of times that lie far apart, as on a machine that does other work; None for steady ones."""
    low, high = timed.quantiles[_QUANTILES // 4], timed.quantiles[3 * _QUANTILES // 4]
    if timed.runs < _UNSTEADY_RUNS or low < _UNSTEADY_MS or high < _UNSTEADY_FACTOR * low:
        return None
    return (
        f"half of the runs took {low:.3g} to {high:.3g} ms: something else keeps this machine busy, and the ratio is "
        "as uncertain; time it again on an idle machine"
    )


def _block(side: _Side, count: int) -> None:
    (run,) = side.runs
    run()
    times = [run() for _ in range(count)]
    side.times.extend(times)
    side.busy.append(sum(times))


def _block_of_callers(side: _Side, pool: ThreadPoolExecutor, count: int) -> None:
    """All callers run again and again for a quarter of a second, or until `count` runs have begun."""
    list(pool.map(lambda run: run(), side.runs))
    number, deadline = itertools.count(), time.perf_counter() + _BLOCK_OF_CALLERS

    def call(run: Run) -> tuple[list[float], float]:
        times = []
        while next(number) < count and time.perf_counter() < deadline:
            times.append(run())
        return times, time.perf_counter()

    began = time.perf_counter()
    callers = list(pool.map(call, side.runs))
    side.times.extend(t for times, _ in callers for t in times)
    side.busy.append(max(ended for _, ended in callers) - began)


def _timing(side: _Side) -> Timing:
    ordered = sorted(s * 1e3 for s in side.times)
    return Timing(
        p50=round(statistics.median(ordered), 4),
        p95=round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 4),
        mean=round(statistics.fmean(ordered), 4),
        best=round(ordered[0], 4),
        runs=len(ordered),
        quantiles=tuple(round(ordered[k * (len(ordered) - 1) // _QUANTILES], 4) for k in range(_QUANTILES + 1)),
        runs_a_second=round(len(ordered) / sum(side.busy), 4),
    )

"""Which nodes of a model of lower precision go back to float32, so that its outputs are near enough.

Where few nodes are at fault, bisection finds them. Where rounding adds up over many, those that lose most go back,
twice as many each time.
"""

from __future__ import annotations

import bisect as sorted_list
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from onnxopt.verification.bisect import bisect
from onnxopt.verification.check import Check
from onnxopt.verification.lowering.goals import Goals, Quality
from onnxopt.verification.lowering.quality import worst

_MIN_TRIALS = 8  # of bisection, which takes twice the logarithm of all nodes for a single one at fault
_MAX_RESTORED = 0.5  # share of the nodes; a model that needs more is no model of this precision
_FEW = 4  # nodes that may be at fault in any model
_MAX_AT_FAULT = 0.25  # share of the nodes; more are no culprits, but a sum of roundings


class Trial(Protocol):
    """A model of lower precision. narrow: how many of its nodes have it. quality: of its outputs."""

    @property
    def narrow(self) -> int: ...
    @property
    def quality(self) -> Sequence[Quality]: ...


Result = TypeVar("Result", bound=Trial)


class Trials(Protocol[Result]):
    """run: makes the model with these nodes in float32. until: goals that decide; where they are missed, the quality
    need not be that of all cases. discard: removes the files of one that is not needed."""

    def run(self, restored: Collection[str], /, until: Goals | None = None) -> Result: ...
    def discard(self, trial: Result, /) -> None: ...


def restored(
    trials: Trials[Result],
    first: Result,
    names: Sequence[str],
    loss: Callable[[str], float],
    goals: Goals,
    *,
    seconds: float,
) -> Result:
    """The model with the fewest nodes in float32 whose outputs reach the goals, as far as there is time to find it.

    first: the model with no node restored. names: of the nodes that may be. loss: what lower precision costs the
    results of a node. seconds: of looking for nodes at fault, and again of leaving out those that lose most. Where half
    of the nodes do not reach them, the result is `first`, or the model without the nodes at fault.
    """
    if goals.reached_by(first.quality):
        return first
    least, best = (1.0 - _MAX_RESTORED) * first.narrow, first
    culprits = _culprits(trials, first, names, goals, time.monotonic() + seconds)
    if culprits:
        best = trials.run(culprits)
        if best.narrow < least:
            trials.discard(best)
            return first
        trials.discard(first)
        if goals.reached_by(best.quality):
            return best
    worst_first = sorted(names, key=lambda name: -loss(name))
    better = _with_fewest(trials, culprits, worst_first, least, goals, time.monotonic() + seconds)
    if better is None:
        return best
    trials.discard(best)
    return better


def _with_fewest(
    trials: Trials[Result],
    culprits: Sequence[str],
    worst_first: Sequence[str],
    least: float,
    goals: Goals,
    deadline: float,
) -> Result | None:
    """The model without the fewest of the nodes that lose most, a power of two, that reaches the goals.

    None where none does, or there is no time to find it. least: nodes that have to keep the lower precision.
    """
    best = None
    counts = [1 << k for k in range(len(worst_first).bit_length()) if 1 << k <= _MAX_RESTORED * len(worst_first)]

    def trial_without(count: int) -> Result:
        return trials.run(tuple(dict.fromkeys((*culprits, *worst_first[:count]))), goals)

    while counts and best is None and time.monotonic() < deadline:
        trial = trial_without(counts.pop())
        if trial.narrow < least:
            trials.discard(trial)
        elif goals.reached_by(trial.quality):
            best = trial
        else:  # fewer nodes do not help either
            trials.discard(trial)
            return None
    while counts and best is not None and time.monotonic() < deadline:
        trial = trial_without(counts.pop(0))
        if goals.reached_by(trial.quality):
            trials.discard(best)
            return trial
        trials.discard(trial)
    return best


def _culprits(
    trials: Trials[Result], first: Result, names: Sequence[str], goals: Goals, deadline: float
) -> tuple[str, ...]:
    """The nodes that must not have lower precision, () where there is no time to find them, or too many."""
    left = _MIN_TRIALS + 3 * len(names).bit_length()
    most = max(_FEW, _MAX_AT_FAULT * len(names))

    def failure_of(enabled: Sequence[str]) -> Check | None:
        nonlocal left
        left -= 1
        if time.monotonic() > deadline or left < 0:
            raise _OutOfTime
        taken = set(enabled)
        trial = trials.run([name for name in names if name not in taken], goals)
        trials.discard(trial)
        return _failure(trial, goals)

    def still(pending: Sequence[int], at_fault: int) -> None:
        if _trials_needed(pending, most - at_fault) > left:
            raise _OutOfTime

    try:
        culprits = tuple(bisect(names, failure_of, str, failure=_failure(first, goals), still=still))
    except _OutOfTime:
        return ()
    return culprits if len(culprits) <= most else ()


def _failure(trial: Trial, goals: Goals) -> Check | None:
    row = worst(trial.quality)
    if row is None or goals.reached_by(trial.quality):
        return None
    return Check(row.provider, False, "", row.output, None, error="too far from float32")


def _trials_needed(pending: Sequence[int], most: float) -> float:
    """The fewest trials after which no more than `most` nodes can be at fault.

    pending: sizes of groups of nodes that fail. At best one half of each fails, the smaller one, again and again, and
    then neither half alone.
    """
    groups, halved = sorted(pending), 0
    while sum(groups) > most:
        if groups[-1] == 1:
            return math.inf
        sorted_list.insort(groups, groups.pop() // 2)
        halved += 1
    return 2.0 * (halved + sum(size > 1 for size in groups))


class _OutOfTime(Exception):
    pass

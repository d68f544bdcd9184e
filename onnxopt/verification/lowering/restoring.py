"""Which nodes of a model of lower precision go back to float32, so that its outputs are near enough.

Where few nodes are at fault, bisection finds them. Where rounding adds up over many, those that lose most go back,
twice as many each time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from onnxopt.verification.bisect import bisect
from onnxopt.verification.check import Check
from onnxopt.verification.lowering.quality import Goals, Quality, worst

_SECONDS = 30.0  # of looking for nodes at fault, and again of leaving out those that lose most
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
    """run: makes the model with these nodes in float32. discard: removes the files of one that is not needed."""

    def run(self, restored: Collection[str], /) -> Result: ...
    def discard(self, trial: Result, /) -> None: ...


def restored(
    trials: Trials[Result], first: Result, names: Sequence[str], loss: Callable[[str], float], goals: Goals
) -> Result:
    """The model with the fewest nodes in float32 whose outputs reach the goals, as far as there is time to find it.

    first: the model with no node restored. names: of the nodes that may be. loss: what lower precision costs the
    results of a node. Where half of the nodes do not reach them, the result is `first`, or the model without the nodes
    at fault.
    """
    if goals.reached_by(first.quality):
        return first
    deadline, best = time.monotonic() + _SECONDS, first
    culprits = _culprits(trials, names, goals, deadline)
    worst_first = sorted(names, key=lambda name: -loss(name))
    deadline, count = time.monotonic() + _SECONDS, 0
    while count <= _MAX_RESTORED * len(names) and time.monotonic() < deadline:
        if wanted := tuple(dict.fromkeys((*culprits, *worst_first[:count]))):
            trial = trials.run(wanted)
            too_few = trial.narrow < (1.0 - _MAX_RESTORED) * first.narrow
            better = not too_few and (goals.reached_by(trial.quality) or (culprits and not count))
            trials.discard(best if better else trial)
            best = trial if better else best
            if too_few or goals.reached_by(trial.quality):
                break
        count = 2 * count or 1
    return best


def _culprits(trials: Trials[Result], names: Sequence[str], goals: Goals, deadline: float) -> tuple[str, ...]:
    """The nodes that must not have lower precision, () where there is no time to find them, or too many."""
    count = itertools.count(1)
    limit = _MIN_TRIALS + 3 * len(names).bit_length()

    def failure_of(enabled: Sequence[str]) -> Check | None:
        if time.monotonic() > deadline or next(count) > limit:
            raise _OutOfTime
        taken = set(enabled)
        culprits = trials.run([name for name in names if name not in taken])
        trials.discard(culprits)
        row = worst(culprits.quality)
        if row is None or goals.reached_by(culprits.quality):
            return None
        return Check(row.provider, False, "", row.output, None, error="too far from float32")

    try:
        culprits = tuple(bisect(names, failure_of, str))
    except _OutOfTime:
        return ()
    return culprits if len(culprits) <= max(_FEW, _MAX_AT_FAULT * len(names)) else ()


class _OutOfTime(Exception):
    pass

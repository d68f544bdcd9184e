"""Which cases of the kinds of verification/edges.py the original accepts, in the time that there is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

import numpy as np

from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.verification import edges, samples
from onnxopt.verification.cases import SEEDS, Case
from onnxopt.verification.compare import Array, is_float

_OVERTIME = 1.5  # of the time for noise: so long values and empty dims are tried
_LONG = 0.5  # of that time: what the first run at a greater length may take
_LONGER = 0.15  # what all others may take together
_SLOW = 0.05  # of that time
_LARGEST = 64 << 20  # bytes of the inputs, or of the outputs, of a long case
_GROWTH = 1.5  # exponent of the time that a run takes, by length
_USUAL = 37  # the greatest length of usual sizes

Outputs = dict[str, Array]


@dataclasses.dataclass
class EdgeCases:
    """run: runs the original at a case; None where it refuses. seconds: for noise; started: when that began."""

    traits: Traits
    pinned: Sizes
    on_gpu: bool
    run: Callable[[Case], Outputs | None]
    seconds: float
    started: float

    def accepted(self, sizes: Sizes, base_seconds: float) -> Iterator[tuple[Case, Outputs]]:
        """Cases with the original's outputs. sizes: at which values are tried; base_seconds: that noise takes there."""
        if self.traits.random or self.traits.traps:
            return
        for kind in edges.kinds(self.traits, self.on_gpu):
            if self._left() < base_seconds:
                return
            yield from self._values(sizes, kind)
        for empty in edges.empty_sizes(self.traits, sizes):
            case = self._case(empty, edges.EMPTY)
            outputs = self.run(case) if case.sizes != tuple(sizes.items()) else None
            if outputs is not None:
                yield case, outputs
        yield from self._long(base_seconds)

    def _left(self) -> float:
        return self.started + _OVERTIME * self.seconds - time.monotonic()

    def _case(self, sizes: Sizes, kind: str) -> Case:
        fitted = samples.fitted(self.traits.inputs, sizes, self.pinned)
        return Case(tuple(fitted.items()), SEEDS[0], kind=kind)

    def _values(self, sizes: Sizes, kind: str) -> Iterator[tuple[Case, Outputs]]:
        """The case of a kind; of large values, the largest at which every output is finite."""
        kinds = (edges.LARGE, edges.LESS_LARGE) if kind == edges.LARGE else (kind,)
        for tried in kinds:
            case = Case(tuple(sizes.items()), SEEDS[0], kind=tried)
            outputs = self.run(case)
            if outputs is None:
                continue
            if tried not in (edges.LARGE, edges.LESS_LARGE) or _are_finite(outputs):
                yield case, outputs
                return

    def _long(self, base_seconds: float) -> Iterator[tuple[Case, Outputs]]:
        """The longest case that there is time for, or that the original accepts, as tables of positions end."""
        best: tuple[Case, Outputs] | None = None
        expected, low, high = base_seconds, _USUAL, 0
        budget, is_slow, begun = _LONG * self.seconds, base_seconds > _SLOW * self.seconds, time.monotonic()
        for length, sizes in edges.long_sizes(self.traits, self.pinned):
            if is_slow and best is None and length == edges.LENGTHS[0]:
                continue  # there is time for one, so for a longer one
            case = self._case(sizes, edges.LONG)
            if samples.bytes_of(self.traits.inputs, dict(case.sizes)) > _LARGEST or expected > budget:
                break
            before = time.monotonic()
            outputs = self.run(case)
            if outputs is None:
                high = length
                break
            expected = (time.monotonic() - before) * 2**_GROWTH
            best, low, budget = (case, outputs), length, begun + _LONGER * self.seconds - time.monotonic()
            if sum(array.nbytes for array in outputs.values()) > _LARGEST:
                break
        while high - low > 1 and time.monotonic() - begun < _LONGER * self.seconds:
            middle = (low + high) // 2
            case = self._case(edges.at_length(self.traits, self.pinned, middle), edges.LONG)
            outputs = self.run(case)
            if outputs is None:
                high = middle
            else:
                best, low = (case, outputs), middle
        if best is not None:
            yield best


def _are_finite(outputs: Outputs) -> bool:
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in outputs.values() if is_float(a))

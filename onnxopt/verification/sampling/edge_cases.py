"""Which cases of the kinds of verification/sampling/edges.py the original accepts, in the time that there is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator

import numpy as np

from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.verification.budget import Budget
from onnxopt.verification.compare import Array, is_float
from onnxopt.verification.sampling import edges, samples
from onnxopt.verification.sampling.cases import SEEDS, Case

_SLOW = 0.05  # seconds of a run, from which on the first of the lengths is not tried
_FIRST, _ALL = 0.5, 0.15  # seconds that the first run at a greater length may take, and all others together
_LARGEST = 64 << 20  # bytes of the inputs, or of the outputs, of a long case
_GROWTH = 1.5  # exponent of the time that a run takes, by length
_USUAL = 37  # the greatest length of usual sizes

Outputs = dict[str, Array]


@dataclasses.dataclass
class EdgeCases:
    """run: runs the original at a case; None where it refuses. output_bytes: of the case whose sizes are usual.

    seed: of all cases, one of cases.seeds_of_kinds.
    """

    traits: Traits
    pinned: Sizes
    on_gpu: bool
    run: Callable[[Case], Outputs | None]
    budget: Budget
    output_bytes: int = 0
    seed: int = SEEDS[0]

    def accepted(self, sizes: Sizes, earlier: Collection[Case]) -> Iterator[tuple[Case, Outputs]]:
        """Cases with the original's outputs. sizes: at which values are tried; earlier: cases that are run already."""
        if self.traits.random or self.traits.traps:
            return
        usual = samples.bytes_of(self.traits.inputs, sizes) or 1
        run, kinds = {case.sizes for case in earlier}, set[str]()
        for kind in edges.kinds(self.traits, self.on_gpu):
            if self._has_time(kind, 1.0):
                yield from self._values(sizes, kind)
        left_out: list[str] = []
        for kind, tried in self._sizes(sizes):
            case = self._case(tried, kind)
            growth = samples.bytes_of(self.traits.inputs, dict(case.sizes)) / usual
            if case.sizes in run or kind in kinds:
                continue
            by_samples = edges.has_more_samples_alone(self.traits, sizes, tried)
            if not self._has_room(growth, usual) or not self.budget.takes_case(growth, by_samples=by_samples):
                left_out.append(kind)
                continue
            run.add(case.sizes)
            outputs = self.run(case)
            if outputs is not None:
                kinds |= {kind} & {edges.MANY}
                yield case, outputs
        for kind in left_out:
            if kind not in kinds:
                self.budget.leave_out(kind)
        yield from self._sides(sizes, usual, run)
        yield from self._long()

    def _has_room(self, growth: float, usual: int) -> bool:
        """Whether inputs and outputs of so many times the usual bytes fit. What lies between them takes time to write,
        for which the budget has a limit."""
        return growth <= 1.0 or max(usual, self.output_bytes) * growth <= _LARGEST

    def _has_time(self, kind: str, growth: float) -> bool:
        has_time = self.budget.takes_case(growth)
        if not has_time:
            self.budget.leave_out(kind)
        return has_time

    def _sizes(self, sizes: Sizes) -> Iterator[tuple[str, Sizes]]:
        if not (self.on_gpu and edges.ends_when_empty(self.traits)):
            yield from ((edges.EMPTY, empty) for empty in edges.empty_sizes(self.traits, sizes))
        yield from ((edges.ONE, one) for one in edges.one_sizes(self.traits, sizes))
        yield from ((edges.MANY, many) for many in edges.many_sizes(self.traits, self.pinned))

    def _case(self, sizes: Sizes, kind: str) -> Case:
        fitted = samples.fitted(self.traits.inputs, sizes, self.pinned)
        return Case(tuple(fitted.items()), self.seed, kind=kind)

    def _values(self, sizes: Sizes, kind: str) -> Iterator[tuple[Case, Outputs]]:
        """The case of a kind; of large values, the largest at which every output is finite."""
        for tried in edges.smaller(kind):
            case = Case(tuple(sizes.items()), self.seed, kind=tried)
            outputs = self.run(case)
            if outputs is not None and (kind not in edges.UP_TO or _are_finite(outputs)):
                yield case, outputs
                return

    def _sides(
        self, sizes: Sizes, usual: int, run: Collection[tuple[tuple[str, int], ...]]
    ) -> Iterator[tuple[Case, Outputs]]:
        """Images of one sample with one long side."""
        for tried in edges.long_sides(self.traits, self.pinned, sizes):
            for case in (self._case(each, edges.SIDE) for each in tried):
                growth = samples.bytes_of(self.traits.inputs, dict(case.sizes)) / usual
                if case.sizes in run or not self._has_time(edges.SIDE, growth):
                    break
                if (outputs := self.run(case)) is not None:
                    yield case, outputs
                    break

    def _long(self) -> Iterator[tuple[Case, Outputs]]:
        """The longest case that there is time for, or that the original accepts, as tables of positions end."""
        best: tuple[Case, Outputs] | None = None
        expected, low, high = self.budget.run, _USUAL, 0
        allowed, is_slow, begun = _FIRST, self.budget.run > _SLOW, time.monotonic()
        for length, sizes in edges.long_sizes(self.traits, self.pinned):
            if is_slow and best is None and length == edges.LENGTHS[0]:
                continue  # there is time for one, so for a longer one
            case = self._case(sizes, edges.LONG)
            if samples.bytes_of(self.traits.inputs, dict(case.sizes)) > _LARGEST or expected > allowed:
                break
            before = time.monotonic()
            outputs = self.run(case)
            if outputs is None:
                high = length
                break
            expected = (time.monotonic() - before) * 2**_GROWTH
            best, low, allowed = (case, outputs), length, begun + _ALL - time.monotonic()
            if sum(array.nbytes for array in outputs.values()) > _LARGEST:
                break
        while high - low > 1 and time.monotonic() - begun < _ALL:
            middle = (low + high) // 2
            case = self._case(edges.at_length(self.traits, self.pinned, middle), edges.LONG)
            outputs = self.run(case)
            if outputs is None:
                high = middle
            else:
                best, low = (case, outputs), middle
        if best is not None:
            yield best
        elif expected > allowed:
            self.budget.leave_out(edges.LONG)


def _are_finite(outputs: Outputs) -> bool:
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in outputs.values() if is_float(a))

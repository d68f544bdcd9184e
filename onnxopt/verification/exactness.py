"""How far models of 16-bit floats are from float32, compared with the rounding of the original itself.

ONNX Runtime's CPU kernels compute float16 in float32 and leave out most roundings between nodes; GPUs round every
result. So where the original as it runs here is nearer to float32 than the model under check, the original is run once
more with every result rounded to its dtype (verification/widening.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from onnxopt.verification.compare import Array, Limit, compare
from onnxopt.verification.widening import widened

_TIMES_OWN = 2.0  # the worst element of one rounding or another; kernels that compute in float32 stay below 1
_FLOOR = 0.1  # of the limit: two units in the last place of float16 and bfloat16

Outputs = Mapping[str, Array]
Case = TypeVar("Case")


@dataclasses.dataclass(frozen=True)
class Exactness:
    """How far an output of a model of 16-bit floats is from the original in float32, as a multiple of the limit.

    found: of the model under check. original: of the unchanged model, the worst of all cases.
    """

    found: float
    original: float

    @property
    def ok(self) -> bool:
        return self.found <= _TIMES_OWN * self.original + _FLOOR


class Float32(Generic[Case]):
    """The original's outputs in float32, and how far its runs in 16 bits are from them.

    runs: the outputs of the original as it is. rounded: makes its outputs with every result rounded to 16 bits; called
    only where they decide.
    """

    def __init__(
        self,
        exact: Mapping[Case, Outputs],
        runs: Mapping[Case, Outputs],
        rounded: Callable[[], Mapping[Case, Outputs]],
        limit: Callable[[str], Limit],
    ):
        self._exact, self._runs, self._make_rounded, self._limit = exact, runs, rounded, limit
        self._rounded: Mapping[Case, Outputs] | None = None
        self._worst: dict[tuple[str, bool], float | None] = {}

    def judge(self, case: Case, name: str, actual: Array) -> Exactness | None:
        """How far an output is from float32; None where the original overflows, so that float32 is no reference."""
        if name not in self._exact.get(case, {}):
            return None
        distance, original = self._distance(case, name, actual), self._worst_of(name, rounded=False)
        if distance is None or original is None:
            return None
        exactness = Exactness(distance, original)
        if exactness.ok:
            return exactness
        return Exactness(distance, max(original, self._worst_of(name, rounded=True) or 0.0))

    def _distance(self, case: Case, name: str, array: Array) -> float | None:
        return compare(widened(self._exact[case][name]), widened(array), self._limit(name)).excess

    def _worst_of(self, name: str, *, rounded: bool) -> float | None:
        """The original's distance over all cases; None where one of them cannot be compared."""
        if (name, rounded) not in self._worst:
            runs = self._all_rounded() if rounded else self._runs
            compared = [case for case, outputs in runs.items() if name in outputs and name in self._exact.get(case, {})]
            distances = [self._distance(case, name, runs[case][name]) for case in compared]
            known = [distance for distance in distances if distance is not None]
            self._worst[name, rounded] = max(known, default=None) if len(known) == len(distances) else None
        return self._worst[name, rounded]

    def _all_rounded(self) -> Mapping[Case, Outputs]:
        if self._rounded is None:
            self._rounded = self._make_rounded()
        return self._rounded

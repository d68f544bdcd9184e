"""How far models that round are from what they would be without rounding, compared with the original itself.

Models of 16-bit floats are held against float32, quantized models against themselves without steps of codes.

ONNX Runtime's CPU kernels compute float16 in float32 and leave out most roundings between nodes; GPUs round every
result. So where the original as it runs here is nearer to float32 than the model under check, the original is run once
more with every result rounded to its dtype (verification/rounding/widening.py).

A quantized model takes another step of a code wherever a value lies near the middle between two, and later layers
enlarge that: two right computations differ by up to half of what quantizing costs. Both are as far from the model
without steps, though. In 23 quantized models the artifact's root mean square of that was at most
1.016 times the original's (outputs of 105 elements and more), and 1.13 times for a single element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from onnxopt.verification.compare import Array, Limit, compare, norm
from onnxopt.verification.rounding.widening import widened
from onnxopt.verification.sampling import edges
from onnxopt.verification.sampling.cases import Case

TIMES_OWN = 2.0  # the worst element of one rounding or another; kernels that compute in float32 stay below 1
# Of the root mean square of many elements: an error of 0.57 times what quantizing costs. That of few elements, which
# one step may move together, varies: by up to a third in 872 random graphs of hundreds of elements.
_TIMES_OWN_RMS = 1.15
_SPREAD = 6.0  # over the square root of how many elements there are
_TELLING = 1e-2  # a fault, relative to the output
_FLOOR = 0.1  # of the limit: two units in the last place of float16 and bfloat16

Outputs = Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class Exactness:
    """How far an output of a model of 16-bit floats is from the original in float32, as a multiple of the limit.

    found: of the model under check. original: of the unchanged model, the worst of all cases.
    """

    found: float
    original: float

    @property
    def allowed(self) -> float:
        """How far `found` may be."""
        return TIMES_OWN * self.original + _FLOOR

    @property
    def ok(self) -> bool:
        return self.found <= self.allowed

    def describe(self) -> str:
        """Both distances, for a sentence."""
        return f"{self.found:.3g} times the limit from float32, the original {self.original:.3g} times"


@dataclasses.dataclass(frozen=True)
class FromFloat64(Exactness):
    """The same of a model of float32, from the original in float64, both at the same case.

    A right kernel can be farther from it than the original by chance, so it does not decide against an output alone.
    """

    of: Literal["float64"]

    def is_telling(self, limit: float) -> bool:
        """Whether a fault of a hundredth of the output would be farther than it may be. limit: relative."""
        return self.allowed * limit <= _TELLING

    def describe(self) -> str:
        return f"{self.found:.3g} times the limit from float64, the original {self.original:.3g} times"


@dataclasses.dataclass(frozen=True)
class QuantizedExactness(Exactness):
    """The same of a quantized model, from the original without steps of codes.

    found_rms, original_rms: root mean square of all elements' distance, relative to that of the output, as a multiple
    of the limit; the original's is the worst of all cases. elements: of the output.
    """

    found_rms: float
    original_rms: float
    elements: int

    @property
    def ok(self) -> bool:
        times = min(TIMES_OWN, _TIMES_OWN_RMS + _SPREAD / max(self.elements, 1) ** 0.5)
        return super().ok and self.found_rms <= times * self.original_rms + _FLOOR

    def describe(self) -> str:
        return (
            f"{self.found:.3g} times the limit from the original without steps of codes (rms {self.found_rms:.3g}), "
            f"the original {self.original:.3g} times (rms {self.original_rms:.3g})"
        )


class Float32:
    """The original's outputs without its rounding, so in float32, and how far its runs as it is are from them.

    runs: the outputs of the original as it is. rounded: makes its outputs with every result rounded to 16 bits; called
    only where they decide; None for quantized models, which every run rounds.
    """

    def __init__(
        self,
        exact: Mapping[Case, Outputs],
        runs: Mapping[Case, Outputs],
        rounded: Callable[[], Mapping[Case, Outputs]] | None,
        limit: Callable[[str], Limit],
    ):
        self._exact, self._runs, self._make_rounded, self._limit = exact, runs, rounded, limit
        self._rounded: Mapping[Case, Outputs] | None = None
        self._worst: dict[tuple[str, str, bool], float | None] = {}
        self._worst_rms: dict[tuple[str, str], float] = {}

    def judge(self, case: Case, name: str, actual: Array) -> Exactness | None:
        """How far an output is from float32; None where the original overflows, so that float32 is no reference."""
        if name not in self._exact.get(case, {}):
            return None
        distance, original = self._distance(case, name, actual), self._worst_of(case, name, rounded=False)
        if distance is None or original is None:
            return None
        if self._make_rounded is None:
            return QuantizedExactness(
                distance, original, self._rms(case, name, actual), self._worst_rms_of(case, name), actual.size
            )
        exactness = Exactness(distance, original)
        if exactness.ok:
            return exactness
        return Exactness(distance, max(original, self._worst_of(case, name, rounded=True) or 0.0))

    def _distance(self, case: Case, name: str, array: Array) -> float | None:
        return compare(widened(self._exact[case][name]), widened(array), self._limit(name)).excess

    def _worst_of(self, like: Case, name: str, *, rounded: bool) -> float | None:
        """The original's distance over all cases with such values; None where one of them cannot be compared."""
        key = _values_of(like), name, rounded
        if key not in self._worst:
            runs = self._all_rounded() if rounded else self._runs
            compared = [case for case, outputs in self._alike(runs, like) if name in self._exact.get(case, {})]
            distances = [self._distance(case, name, runs[case][name]) for case in compared if name in runs[case]]
            numbers = [distance for distance in distances if distance is not None]
            self._worst[key] = max(numbers, default=None) if len(numbers) == len(distances) else None
        return self._worst[key]

    @staticmethod
    def _alike(runs: Mapping[Case, Outputs], like: Case) -> list[tuple[Case, Outputs]]:
        return [(case, outputs) for case, outputs in runs.items() if _values_of(case) == _values_of(like)]

    def _rms(self, case: Case, name: str, array: Array) -> float:
        exact, actual = (a.astype(np.float64).ravel() for a in (self._exact[case][name], array))
        both = np.isfinite(exact) & np.isfinite(actual)
        scale = norm(exact[both]) or float(np.count_nonzero(both)) ** 0.5 or 1.0
        return norm(exact[both] - actual[both]) / scale / self._limit(name).relative

    def _worst_rms_of(self, like: Case, name: str) -> float:
        key = _values_of(like), name
        if key not in self._worst_rms:
            distances = [self._rms(case, name, outputs[name]) for case, outputs in self._alike(self._runs, like)]
            self._worst_rms[key] = max(distances)
        return self._worst_rms[key]

    def _all_rounded(self) -> Mapping[Case, Outputs]:
        assert self._make_rounded is not None
        if self._rounded is None:
            self._rounded = self._make_rounded()
        return self._rounded


def _values_of(case: Case) -> str:
    """The kind of a case where its values are of another size than noise, "" of all others."""
    return "" if case.kind in edges.LIKE_NOISE else case.kind

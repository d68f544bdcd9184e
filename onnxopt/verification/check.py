"""Check: one output of one run, what it differs by, and what speaks for it."""

from __future__ import annotations

import dataclasses

from onnxopt.verification.compare import Difference
from onnxopt.verification.rounding.exactness import Exactness, FromFloat64, QuantizedExactness

TIMES_SPREAD = 4.0  # a few runs are a few draws from a distribution


@dataclasses.dataclass(frozen=True)
class Check:
    """One output of one run.

    difference: from the original's. exactness: how far both are from the original with less rounding, where that
    was measured: for models of 16-bit floats and quantized ones it decides; for others it can only speak for an
    output. error: why there is nothing to compare. noise: how far the original exceeds the limit against itself at
    this case, where its results change in their last place; measured only where the difference is questioned and
    float64 does not speak for the output, and for models of 16-bit floats at large values. unstable: such a change
    gives this output another shape, or NaNs elsewhere, so that any value passes.
    """

    provider: str
    library: bool
    case: str
    output: str
    difference: Difference | None
    noise: float | None = None
    unstable: bool = False
    error: str = ""
    exactness: QuantizedExactness | FromFloat64 | Exactness | None = None

    @property
    def ok(self) -> bool:
        if self.difference is None:
            return False
        if self.exactness is not None and self.exactness.ok:
            return True
        if self.unstable:
            return True
        excess = self.difference.excess
        if self.noise is not None:
            return excess is not None and excess <= TIMES_SPREAD * self.noise
        return self.exactness is None and self.difference.ok

    @property
    def why_beyond(self) -> str:
        """Why an output passes that differs by more than the limit, for a message; empty where that is not so."""
        if self.difference is None or self.difference.ok or not self.ok:
            return ""
        if self.exactness is not None and self.exactness.ok:
            return self.exactness.describe()
        if self.unstable:
            return "where the original's results change in their last place, its shape or its NaNs change"
        return f"where the original's results change in their last place, it moves by {self.noise:.3g} times the limit"

    def is_sharp(self, limit: float) -> bool:
        """Whether it passed by the limit, relative to the output: its own, or that of the original in float64.

        Where the original is farther than the limit from float64, as ONNX Runtime's Sigmoid of -9 is, the check is
        sharp if a fault of a hundredth of the output would have been found.
        """
        if self.difference is None or self.unstable:
            return False
        if isinstance(self.exactness, FromFloat64) and self.exactness.ok:
            return self.exactness.found <= 1.0 or self.exactness.is_telling(limit)
        if self.exactness is not None and not isinstance(self.exactness, FromFloat64):
            return self.exactness.ok
        return self.difference.ok


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A case that the original itself does not run, with ONNX Runtime's reason."""

    provider: str
    case: str
    reason: str

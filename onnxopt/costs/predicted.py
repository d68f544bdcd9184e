"""What a roofline of a run takes."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class PredictedCosts:
    """The numbers of costs/data/predicted.json, which says what each is."""

    launch: float
    bandwidth_share: float
    product_share: float
    error_after: tuple[float, float]
    error_before: tuple[float, float]
    error_of_step: tuple[float, float]
    tile: int

    def error_text(self) -> str:
        """How near predictions are."""
        (low, high), (low_original, high_original) = self.error_after, self.error_before
        after, before = self.error_of_step
        return (
            f"on one H200, nine float16 models took {low:.2f} to {high:.2f} times the predicted time after "
            f"optimizing and {low_original:.2f} to {high_original:.2f} times that before, and a tenth that chose "
            f"nothing here (a decoding step) {after:.2f} and {before:.2f} times; other GPUs were not compared"
        )


@functools.cache
def numbers() -> PredictedCosts:
    """The measured numbers."""
    return load("predicted", PredictedCosts)

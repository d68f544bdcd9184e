"""Figures of outputs of lower precision against the float32 original, and what they have to be.

Options hold it, so that this module imports little.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from onnxopt.errors import UsageError

CLASSES = 10  # from which on a row may be of logits
ROUNDED = "rounded"  # in place of a provider: float32 with every stored value rounded


@dataclasses.dataclass(frozen=True)
class Quality:
    """One output against float32's; each figure is that of the worst case.

    provider: that ran the model, or ROUNDED. library: whether with the library. sqnr_db: signal to noise, 10 log10(sum
    of squares of float32's elements / of the differences); None where nothing differs, or for integers. cosine: None
    where a vector is 0. argmax: share of rows (last axis) with the greatest element at the same place; of integers the
    share of equal elements. top5: share of rows of at least 10 elements whose greatest element in float32 is among the
    five greatest. kl: mean Kullback-Leibler divergence of such rows' softmax from float32's, in nats. invalid: elements
    that are NaN or infinite here and finite in float32, or the reverse, and all elements of an output of another shape.
    """

    provider: str
    library: bool
    output: str
    cases: int
    sqnr_db: float | None
    cosine: float | None
    argmax: float | None
    invalid: int = 0
    top5: float | None = None
    kl: float | None = None

    @property
    def source(self) -> str:
        """How the output was computed."""
        if self.provider == ROUNDED:
            return "every stored value rounded"
        return f"{self.provider.removesuffix('ExecutionProvider')} {'with' if self.library else 'without'} the library"


@dataclasses.dataclass(frozen=True)
class Goals:
    """What every output has to keep against float32; None where nothing was asked for. The worst case counts.

    min_sqnr: signal to noise in dB. min_cosine: -1 to 1. min_top1, min_top5: shares of the rows, 0 to 1, whose greatest
    element is the same, or among the five greatest. max_kl: nats. UsageError for values that mean nothing.
    """

    min_sqnr: float | None = None
    min_cosine: float | None = None
    min_top1: float | None = None
    min_top5: float | None = None
    max_kl: float | None = None

    def __post_init__(self) -> None:
        for name, (low, high, unit) in _GOALS.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise UsageError(f"{name} {value} is not {unit}")

    @property
    def stated(self) -> dict[str, float]:
        """What was asked for, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def missed(self, row: Quality) -> str:
        """What an output misses, as "32.1 dB, at least 40 dB were asked for"; "" where it reaches everything."""
        if row.invalid:
            return f"{row.invalid} elements are NaN or infinite on one side alone"
        differs = row.sqnr_db is not None
        if self.min_sqnr is not None and row.sqnr_db is not None and row.sqnr_db < self.min_sqnr:
            return f"{row.sqnr_db} dB from float32, at least {self.min_sqnr:g} dB were asked for"
        if self.min_cosine is not None and differs and (row.cosine is None or row.cosine < self.min_cosine):
            cosine = "none, as one of the two is 0" if row.cosine is None else f"{row.cosine:.7f}"
            return f"cosine {cosine}, at least {self.min_cosine:g} was asked for"
        if self.min_top1 is not None and row.argmax is not None and row.argmax < self.min_top1:
            return f"top-1 agrees in {row.argmax:.2%} of the rows, {self.min_top1:.2%} were asked for"
        if self.min_top5 is not None and row.top5 is not None and row.top5 < self.min_top5:
            return f"top-5 agrees in {row.top5:.2%} of the rows, {self.min_top5:.2%} were asked for"
        if self.max_kl is not None and row.kl is not None and row.kl > self.max_kl:
            return f"KL {row.kl:.2e} nats, at most {self.max_kl:g} were asked for"
        return ""

    def reached_by(self, rows: Iterable[Quality]) -> bool:
        """Whether all outputs are valid and reach everything."""
        return not any(map(self.missed, rows))

    def check_rows(self, rows: Sequence[Quality]) -> None:
        """UsageError where no output has the figure that was asked for, so that nothing could be missed."""
        for name, figure, which in (
            ("min_top1", "argmax", "a row of two elements"),
            ("min_top5", "top5", f"finite rows of at least {CLASSES} elements"),
            ("max_kl", "kl", f"finite rows of at least {CLASSES} elements"),
        ):
            if getattr(self, name) is not None and rows and all(getattr(row, figure) is None for row in rows):
                raise UsageError(f"{name} was asked for, and no output has {which}")


# Least and most value of each goal, and what it is, for messages.
_GOALS = {
    "min_sqnr": (-math.inf, math.inf, "a finite number of dB"),
    "min_cosine": (-1.0, 1.0, "a cosine, from -1 to 1"),
    "min_top1": (0.0, 1.0, "a share, from 0 to 1"),
    "min_top5": (0.0, 1.0, "a share, from 0 to 1"),
    "max_kl": (0.0, math.inf, "a divergence in nats, 0 or more"),
}

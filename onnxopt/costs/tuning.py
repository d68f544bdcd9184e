"""What `tune` measures, and from which difference on a faster choice counts as one."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class TuningCosts:
    """The numbers of costs/data/tuning.json, which says what each is."""

    entry_points: int
    unrolls: tuple[int, ...]
    threads: tuple[int, ...]
    row_threads: tuple[int, int]
    row_elements: int
    noise: float
    min_gain: float


@functools.cache
def numbers() -> TuningCosts:
    """The measured numbers."""
    return load("tuning", TuningCosts)

"""The tiles of mixtures of experts, and where cuBLASLt is faster."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class ExpertsCosts:
    """The numbers of costs/data/experts.json, which says what each is."""

    tiles: tuple[tuple[int, int, int, int, int], ...]
    tiles_of_few: int
    min_rows_and_flops: Mapping[int, tuple[int, float]]
    route_threads: int
    threads: int
    min_step: int
    steps: int
    max_splits: int
    min_steps: int
    steps_of_block: int
    steps_of_activation: int

    def min_rows(self, size: int, flops_of_row: int) -> int:
        """Rows of an expert on average from which cuBLASLt multiplies. size: bytes of an element."""
        rows, flops = self.min_rows_and_flops[size]
        return max(rows, math.ceil(flops / flops_of_row))


@functools.cache
def numbers() -> ExpertsCosts:
    """The measured numbers."""
    return load("experts", ExpertsCosts)

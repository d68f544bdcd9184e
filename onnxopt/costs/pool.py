"""The tiles of pools in NHWC."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class PoolCosts:
    """The numbers of costs/data/pool.json, which says what each is."""

    threads: int
    wide: int
    overlap: int
    tiles: tuple[tuple[int, int], ...]
    few_threads: int
    min_access: int

    def outputs(self, side: int, stride: int, *, across: bool) -> int:
        """Outputs of a thread along an axis, by the side of the window and what it moves by."""
        if not 1 < side >= self.overlap * stride:
            return 1
        return 4 if across and side >= self.wide * stride else 2


@functools.cache
def numbers() -> PoolCosts:
    """The measured numbers."""
    return load("pool", PoolCosts)

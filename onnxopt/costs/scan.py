"""How threads share the rows of running totals."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class ScanCosts:
    """The numbers of costs/data/scan.json, which says what each is."""

    threads: int
    lanes: tuple[int, ...]
    short_row_vectors: int
    short_row_unroll: int
    long_row_unroll: int
    held: tuple[tuple[int, int], ...]
    looped: tuple[int, int]
    split: tuple[int, int]
    strided: tuple[tuple[int, int], ...]
    blocks_of_loop: int
    chunks_of_split: int
    blocks_of_split: int
    max_parts: int

    def lanes_of(self, vectors: int) -> int | None:
        """Lanes that share a held row of so many vectors; None where registers cannot hold it."""
        each = self.short_row_unroll if vectors <= self.short_row_vectors else self.long_row_unroll
        return next((n for n in self.lanes if vectors <= each * n), None)


@functools.cache
def numbers() -> ScanCosts:
    """The measured numbers."""
    return load("scan", ScanCosts)

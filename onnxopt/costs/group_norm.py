"""The launch shapes of group norms in NHWC."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class GroupNormCosts:
    """The numbers of costs/data/group_norm.json, which says what each is."""

    threads: int
    held: tuple[tuple[int, int, int], ...]
    clusters: tuple[int, ...]
    vectors: tuple[int, ...]
    resident: tuple[tuple[int, int], ...]
    reached_multiprocessors: int
    min_threads: int
    min_run: int
    min_run_of_split: int
    max_columns: int
    enough_blocks: int
    split_threads: int
    blocks_of_split: int
    vectors_of_split: int
    idle_twentieths: int

    @property
    def few_threads(self) -> int:
        """Threads of a block of a cluster, of which two blocks share a multiprocessor's registers."""
        return max(threads for threads, blocks in self.resident if blocks > 1)

    @property
    def max_threads(self) -> int:
        """Threads of a block of a cluster."""
        return max(threads for threads, _ in self.resident)

    def resident_blocks(self, threads: int) -> int:
        """Blocks of a cluster, of so many threads, that a multiprocessor has registers for at a time."""
        return next(blocks for limit, blocks in self.resident if threads <= limit)

    def at_once(self, blocks: int, threads: int) -> bool:
        """Whether all blocks of clusters run at a time on the GPU that was measured, or so many that it takes several
        rounds anyway."""
        reached = self.reached_multiprocessors
        return blocks <= reached * self.resident_blocks(threads) or blocks > reached * self.resident[0][1]


@functools.cache
def numbers() -> GroupNormCosts:
    """The measured numbers."""
    return load("group_norm", GroupNormCosts)

"""Thresholds of rowwise launches."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from onnxopt.costs.measured import newest

Clusters = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """The numbers in the rules of kinds/rowwise/launch_shapes.py.

    The GPU:
        multiprocessors: of the GPU.
        shared_bytes: shared memory of one multiprocessor.
        reserved_shared_bytes: shared memory that a block needs beside its rows; 1 KB of it is the driver's.
    Rows that lanes of a warp or of a small block share:
        few_rows_per_multiprocessor: the most rows per multiprocessor that count as few.
        threads: of a block.
        usual_elements: elements of a row per thread.
        usual_bytes: bytes of a row per thread where rows are many, if these are more elements.
        most_bytes: the most bytes of one input per thread.
        short_row_vectors: where rows are many, a row of up to this many vectors of 16 bytes gets one vector per thread.
        most_wasted: the most lanes per lane that has a vector.
        least_bytes_of_block: a block that would read fewer bytes of an input gets twice the threads, because the read
            would take less time than the start of a block.
    Rows of odd length:
        short_vector_bytes: a row that only fits narrower vectors may be ragged instead (cut where memory is aligned).
        short_odd_row, long_odd_row: rows are ragged up to the first and from the second number of elements on. In
            between, whole vectors cost more instructions than they save.
    Every layout:
        most_held, most_ragged, most_strided: the most elements of a row per thread, by layout.
        most_vectors: the most vectors of a row per thread, because the code grows with them.
    Rows that a large block or a cluster of blocks shares:
        large_threads: of a block.
        least_vector_bytes_of_cluster: the narrowest vector.
        narrow_clusters, wide_clusters: (blocks of a cluster, the most elements of a row per thread), in the order to
            try, for elements of up to 16 bits and for wider elements.
        most_of_two_blocks: the most 16-bit elements per thread at which the registers suffice for two blocks per
            multiprocessor.
    """

    multiprocessors: int
    shared_bytes: int
    reserved_shared_bytes: int
    few_rows_per_multiprocessor: int
    threads: int
    large_threads: int
    usual_elements: int
    usual_bytes: int
    most_bytes: int
    short_row_vectors: int
    most_wasted: float
    least_bytes_of_block: int
    short_vector_bytes: int
    short_odd_row: int
    long_odd_row: int
    most_held: int
    most_ragged: int
    most_strided: int
    most_vectors: int
    least_vector_bytes_of_cluster: int
    most_of_two_blocks: int
    narrow_clusters: Clusters
    wide_clusters: Clusters

    @property
    def few_rows(self) -> int:
        """The most rows that count as few."""
        return self.few_rows_per_multiprocessor * self.multiprocessors

    @property
    def most_blocks(self) -> int:
        """Blocks of the largest cluster."""
        return max(blocks for blocks, _ in (*self.narrow_clusters, *self.wide_clusters))

    def verify(self) -> None:
        """Raise ValueError naming the number that cannot be right."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_clusters"):
                _verify_clusters(field.name, value)
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ValueError(f"{field.name}: {value!r} is not a number above 0")
            elif field.name != "most_wasted" and not isinstance(value, int):
                raise ValueError(f"{field.name}: {value!r} is not a whole number")
        if self.reserved_shared_bytes >= self.shared_bytes:
            raise ValueError("reserved_shared_bytes: a block needs more shared memory than a multiprocessor has")
        if self.short_odd_row >= self.long_odd_row:
            raise ValueError("short_odd_row: not below long_odd_row")


def _verify_clusters(name: str, clusters: Clusters) -> None:
    if any(len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair) for pair in clusters):
        raise ValueError(f"{name}: {clusters} are not pairs of blocks and elements")
    blocks = [pair[0] for pair in clusters]
    if not blocks or blocks[0] != 1 or blocks != sorted(set(blocks)):
        raise ValueError(f"{name}: numbers of blocks {blocks} do not grow from 1")


@functools.cache
def measured() -> Thresholds:
    """The thresholds of the newest architecture."""
    return parse(newest("rowwise"))


def parse(values: dict[str, Any]) -> Thresholds:
    """The thresholds of the numbers of costs/rowwise.json. ValueError names what is wrong."""
    numbers: dict[str, Any] = {
        name: tuple(map(tuple, value)) if isinstance(value, list) else value for name, value in values.items()
    }
    try:
        thresholds = Thresholds(**numbers)
        thresholds.verify()
    except (TypeError, ValueError) as error:
        raise ValueError(f"rowwise.json: {error}") from None
    return thresholds

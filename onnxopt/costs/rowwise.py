"""Thresholds of rowwise launches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from onnxopt.costs.measured import family, fill

Clusters = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """The numbers of costs/data/rowwise.json, which says what each is; kinds/rowwise/launch_shapes.py has the rules."""

    multiprocessors: int
    shared_bytes: int
    reserved_shared_bytes: int
    few_rows_per_multiprocessor: int
    threads: int
    lanes: tuple[int, ...]
    wide_lanes: tuple[int, ...]
    wide_lane_vectors: int
    block_threads: tuple[int, ...]
    ragged_threads: tuple[int, ...]
    strided_threads: tuple[int, ...]
    strided_looped_threads: tuple[int, ...]
    split_strided_side: int
    split_strided_columns: int
    strided_warp_threads: int
    strided_part_threads: int
    strided_lanes: int
    filled_threads: int
    large_threads: int
    usual_elements: int
    waste_weight: int
    block_weight: float
    usual_bytes: int
    max_bytes: int
    short_row_vectors: int
    max_wasted: float
    min_bytes_of_block: int
    short_vector_bytes: int
    short_odd_row: int
    long_odd_row: int
    max_held: int
    max_ragged: int
    max_strided: int
    max_vectors: int
    min_vector_bytes_of_cluster: int
    max_of_two_blocks: int
    narrow_clusters: Clusters
    wide_clusters: Clusters
    min_elements: int
    max_repeated: int
    special_lengths: int
    looped_threads: int
    blocks_of_loop: int
    cluster_rows: int
    short_for_cluster: int
    max_parts: int
    blocks_of_split: int

    @property
    def few_rows(self) -> int:
        """The most rows that count as few."""
        return self.few_rows_per_multiprocessor * self.multiprocessors

    @property
    def max_blocks(self) -> int:
        """Blocks of the largest cluster."""
        return max(blocks for blocks, _ in (*self.narrow_clusters, *self.wide_clusters))

    def verify(self) -> None:
        """Raise ValueError naming the number that cannot be right."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_clusters"):
                _verify_clusters(field.name, value)
            elif isinstance(value, tuple):
                if not value or list(value) != sorted(set(value)) or value[0] <= 0:
                    raise ValueError(f"{field.name}: {value} does not grow from a number above 0")
            elif value <= 0:
                raise ValueError(f"{field.name}: {value!r} is not a number above 0")
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
def numbers() -> Thresholds:
    """The measured thresholds."""
    return parse({key: row.value for key, row in family("rowwise").rows.items()})


def parse(values: Mapping[str, Any]) -> Thresholds:
    """The thresholds of the numbers of costs/data/rowwise.json. ValueError names what is wrong."""
    thresholds = fill("rowwise", values, Thresholds)
    try:
        thresholds.verify()
    except ValueError as error:
        raise ValueError(f"rowwise.json: {error}") from None
    return thresholds

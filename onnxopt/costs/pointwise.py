"""Block sizes, vectors per thread, and tile sizes of pointwise kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class Block:
    """threads: of a block. unroll: vectors per thread."""

    threads: int
    unroll: int


@dataclasses.dataclass(frozen=True)
class TileArea:
    """elements: the most elements of a tile. threads: of its block."""

    elements: int
    threads: int


@dataclasses.dataclass(frozen=True)
class PointwiseCosts:
    """The numbers of costs/data/pointwise.json, which says what each is."""

    threads: int
    unroll: int
    tile_of_bytes: int
    tiles: tuple[Mapping[str, Any], ...]
    tile_columns: int
    min_tile_side: int
    min_read_columns: int
    max_whole_rows: int
    min_sliding_vectors: int
    min_vector_bytes: int
    special_variants: int
    general_threads: int


@functools.cache
def numbers() -> PointwiseCosts:
    """The measured numbers."""
    return load("pointwise", PointwiseCosts)


def block() -> Block:
    """The block of every kernel that is not tiled."""
    return Block(numbers().threads, numbers().unroll)


def tile_area(elements: int | None, size: int) -> TileArea:
    """The tile area for a domain of this many elements, None if unknown. size: bytes of an element of a tiled input."""
    rows = numbers().tiles
    row = next(r for r in rows if r["below"] is None or (elements is not None and elements < r["below"]))
    return TileArea(row["elements"] * (numbers().tile_of_bytes if size == 1 else 1), row["threads"])

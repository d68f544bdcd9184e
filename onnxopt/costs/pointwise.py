"""Block sizes, vectors per thread, and tile sizes of pointwise kernels."""

from __future__ import annotations

import dataclasses

from onnxopt.costs.measured import newest


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


def block() -> Block:
    """The block of every kernel that is not tiled."""
    return Block(**newest("pointwise")["block"])


def tile_area(elements: int | None, size: int) -> TileArea:
    """The tile area for a domain of this many elements, None if unknown. size: bytes of an element of a tiled input."""
    values = newest("pointwise")
    rows = values["tiles"]
    row = next(r for r in rows if r["below"] is None or (elements is not None and elements < r["below"]))
    return TileArea(row["elements"] * (values["tile_of_bytes"] if size == 1 else 1), row["threads"])

"""Launch: measured block sizes, vectors per thread, and tile sizes. launch.json has the numbers and their source.

One kernel serves every architecture of a fatbin. The numbers of the newest measured architecture stand for all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("launch.json")


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
    return Block(**_table()["block"])


def tile_area(elements: int | None, size: int) -> TileArea:
    """The tile area for a domain of this many elements, None if unknown. size: bytes of an element of a tiled input."""
    rows = _table()["tiles"]
    row = next(r for r in rows if r["below"] is None or (elements is not None and elements < r["below"]))
    return TileArea(row["elements"] * (_table()["tile_of_bytes"] if size == 1 else 1), row["threads"])


@functools.cache
def _table() -> dict[str, Any]:
    archs = json.loads(_TABLE.read_text())["archs"]
    newest: dict[str, Any] = archs[max(archs, key=lambda arch: int(arch.removeprefix("sm_")))]
    return newest

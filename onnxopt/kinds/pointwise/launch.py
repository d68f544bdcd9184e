"""Launch: block sizes, vectors a thread and sizes of tiles, as measured: launch.json is the table, and how it was made.

One kernel serves every architecture of a fatbin, so that the row of the newest architecture that was measured stands
for all of them.
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
    """threads: of a block. unroll: vectors a thread."""

    threads: int
    unroll: int


@dataclasses.dataclass(frozen=True)
class TileArea:
    """elements: that a tile should have at most. threads: of its block."""

    elements: int
    threads: int


def block() -> Block:
    """For every kernel that is not tiled."""
    return Block(**_table()["block"])


def tile_area(elements: int | None, size: int) -> TileArea:
    """For a domain of this many elements; None: not known. size: bytes of an element of what goes through tiles."""
    rows = _table()["tiles"]
    row = next(r for r in rows if r["below"] is None or (elements is not None and elements < r["below"]))
    return TileArea(row["elements"] * (_table()["tile_of_bytes"] if size == 1 else 1), row["threads"])


@functools.cache
def _table() -> dict[str, Any]:
    archs = json.loads(_TABLE.read_text())["archs"]
    newest: dict[str, Any] = archs[max(archs, key=lambda arch: int(arch.removeprefix("sm_")))]
    return newest

"""Tiles: the sides of the piece of a transposed domain that one block takes through shared memory."""

from __future__ import annotations

import dataclasses
import math

from onnxopt import launch
from onnxopt.extents import Extent
from onnxopt.indexing import Term

COLUMNS = 64  # elements of 2 bytes: a row of a tile is a whole line of the cache
_SHARED_BYTES = 48 << 10
_SHORTEST_SIDE = 8  # of a tile that may be cut anywhere
_SHORTEST_READ = 16  # elements along the columns that are worth the way through shared memory where rows are few
_MOST_WHOLE = 64  # rows of a whole tile


@dataclasses.dataclass(frozen=True)
class Tile:
    """rows x columns elements, by blocks of `threads`, stored in vectors of `width`. whole: all rows there are."""

    rows: int
    columns: int
    whole: bool
    width: int
    threads: int


def choose(column: Term, count: Extent, row_bytes: int, width: int) -> Tile | None:
    """The tile for inputs that lie along the term `column`, or None where it is not worth it.

    count: size of the domain. row_bytes: of all such inputs' elements at one place. width: the widest vector.
    """
    rows, columns = column.div.number, column.mod.number
    area = launch.tile_area(count.number)
    wide = COLUMNS if columns is None else min(COLUMNS, _power(columns))
    if rows is not None and rows <= _MOST_WHOLE:
        tile = _whole(rows, columns, wide, area, width)
        if tile is not None:
            return tile if _fits(tile, row_bytes) else None
    vector = max((w for w in (16, 8, 4, 2, 1) if w <= width and column.div.factor % w == 0), default=1)
    if any(n is not None and n < _SHORTEST_SIDE for n in (rows, columns)) and not _is_strip(rows, columns):
        return None
    most = max(area.elements // wide, vector)
    tile = Tile(_balanced(rows, most, vector), wide, False, vector, area.threads)
    while not _fits(tile, row_bytes) and tile.rows // 2 >= max(vector, _SHORTEST_SIDE):
        tile = dataclasses.replace(tile, rows=tile.rows // 2 // vector * vector)
    return tile if _fits(tile, row_bytes) else None


def _is_strip(rows: int | None, columns: int | None) -> bool:
    """Few columns beside many rows, as SpaceToDepth reads them."""
    return columns is not None and rows is not None and columns < _SHORTEST_SIDE and rows >= 4 * _SHORTEST_SIDE


def _whole(rows: int, columns: int | None, wide: int, area: launch.TileArea, width: int) -> Tile | None:
    """A tile of all rows: as many columns as the area allows; None where no vector or too few columns fit it."""
    if columns is None or columns < _SHORTEST_READ:
        return None
    fit = max(_SHORTEST_READ, 1 << int(math.log2(max(1, area.elements // rows))))
    fit = min(fit, _power(columns)) if rows < _SHORTEST_SIDE else min(fit, wide)
    vector = max(w for w in (16, 8, 4, 2, 1) if w <= width and rows * columns % w == 0 and rows * fit % w == 0)
    cut = max(w for w in (16, 8, 4, 2, 1) if w <= width and rows % w == 0)
    return None if vector == cut and rows >= _SHORTEST_SIDE else Tile(rows, fit, True, vector, area.threads)


def _balanced(rows: int | None, most: int, vector: int) -> int:
    """Rows of a tile, at most `most`, so that the last tile along the rows is about as full as the others."""
    if rows is None:
        return most // vector * vector
    tiles = -(-rows // most)
    return -(-rows // (tiles * vector)) * vector


def _fits(tile: Tile, row_bytes: int) -> bool:
    return tile.rows * (tile.columns + 4) * row_bytes <= _SHARED_BYTES


def _power(n: int) -> int:
    """The least power of two that is at least n, and at least 2."""
    return max(2, 1 << (n - 1).bit_length())

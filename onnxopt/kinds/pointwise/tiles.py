"""Tiles: the sides of the piece of a transposed domain that one block takes through shared memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onnxopt.kinds.pointwise import launch
from onnxopt.program.extents import Extent
from onnxopt.program.hardware import STATIC_SHARED_BYTES, WARP
from onnxopt.program.indexing import Term

COLUMNS = 64  # at least
_LINE_BYTES = 128  # of the cache: a row of a tile has no less
_PADDING = 36  # elements a row in shared memory, at most
_FEWEST_BY_ROWS = 16  # columns of a tile whose rows lie one behind the other there (pointwise/tile_column.cuh)
_SHORTEST_SIDE = 8  # of a tile that may be cut anywhere
_SHORTEST_READ = 16  # elements along the columns that are worth the way through shared memory where rows are few
_MOST_WHOLE = 64  # rows of a whole tile
_FEWEST_VECTORS = 4  # of the rows, for a tile that slides: at both ends a vector is stored element by element


@dataclasses.dataclass(frozen=True)
class Tile:
    """rows x columns elements, by blocks of `threads`, stored in vectors of `width`.

    whole: all rows there are. slides: begins in each column with the vector that its first row lies in.
    """

    rows: int
    columns: int
    width: int
    threads: int
    whole: bool = False
    slides: bool = False


def choose(column: Term, count: Extent, sizes: Sequence[int], width: int) -> tuple[Tile, ...]:
    """The tiles for inputs that lie along the term `column`, in the order to try them; none where it is not worth it.

    count: size of the domain. sizes: bytes of an element of each such input. width: the widest vector.
    """
    rows, columns = column.div.number, column.mod.number
    row_bytes = sum(sizes)
    area = launch.tile_area(count.number, max(sizes))
    most = max(COLUMNS, _LINE_BYTES // max(sizes))
    wide = most if columns is None else min(most, _power(columns))
    if rows is not None and rows <= _MOST_WHOLE:
        tile = _whole(rows, columns, wide, area, width)
        if tile is not None:
            return (tile,) if _fits(tile, row_bytes) else ()
    if any(n is not None and n < _SHORTEST_SIDE for n in (rows, columns)) and not _is_strip(rows, columns):
        return ()
    if column.div.factor % width == 0:
        found = [_cut(rows, wide, area, width, row_bytes)]
    elif rows is None:  # what is hoped for, and what fits any number of them
        found = [_cut(rows, wide, area, width, row_bytes, slides=slides) for slides in (False, True)]
    elif rows < _FEWEST_VECTORS * width or 1 < _widest(width, rows) == width // 2:
        found = [_cut(rows, wide, area, _widest(width, rows), row_bytes)]
    else:
        found = [_cut(rows, wide, area, width, row_bytes, slides=True)]
    return tuple(t for t in found if _fits(t, row_bytes))


def _is_strip(rows: int | None, columns: int | None) -> bool:
    """Few columns beside many rows, as SpaceToDepth reads them."""
    return columns is not None and rows is not None and columns < _SHORTEST_SIDE and rows >= 4 * _SHORTEST_SIDE


def _whole(rows: int, columns: int | None, wide: int, area: launch.TileArea, width: int) -> Tile | None:
    """A tile of all rows: as many columns as the area allows; None where no vector or too few columns fit it."""
    if columns is None or columns < _SHORTEST_READ:
        return None
    fit = max(_SHORTEST_READ, 1 << int(math.log2(max(1, area.elements // rows))))
    fit = min(fit, _power(columns)) if rows < _SHORTEST_SIDE else min(fit, wide)
    vector = _widest(width, rows * columns, rows * fit)
    if rows >= _SHORTEST_SIDE and vector == _widest(width, rows):
        return None
    if rows >= _FEWEST_VECTORS * width and vector < width:
        return None  # one that slides is better
    return Tile(rows, fit, vector, _threads(rows * fit // vector, area), whole=True)


def _cut(
    rows: int | None, columns: int, area: launch.TileArea, width: int, row_bytes: int, *, slides: bool = False
) -> Tile:
    """A tile that has some of the rows."""
    most = max(area.elements // columns // width * width, width)
    tile_rows = most
    if rows is not None:  # so that the last tile along the rows is about as full as the others
        reach = rows + (width - 1 if slides else 0)
        tile_rows = -(-reach // (-(-reach // most) * width)) * width
    tile = Tile(tile_rows, columns, width, area.threads, slides=slides)
    while not _fits(tile, row_bytes) and tile.rows // 2 >= max(width, _SHORTEST_SIDE):
        tile = dataclasses.replace(tile, rows=tile.rows // 2 // width * width)
    return dataclasses.replace(tile, threads=_threads(tile.rows * columns // width, area))


def _threads(vectors: int, area: launch.TileArea) -> int:
    """So many that each has as many vectors as the others."""
    each = -(-vectors // area.threads)
    return -(-vectors // (each * WARP)) * WARP


def _widest(width: int, *numbers: int) -> int:
    """The widest vector, at most `width`, that divides all of these."""
    return max(w for w in (16, 8, 4, 2, 1) if w <= width and all(n % w == 0 for n in numbers))


def _fits(tile: Tile, row_bytes: int) -> bool:
    held = tile.rows + (tile.width if tile.slides else 0)
    by_columns = tile.columns < _FEWEST_BY_ROWS
    elements = (held + _PADDING) * tile.columns if by_columns else held * (tile.columns + _PADDING)
    return elements * row_bytes <= STATIC_SHARED_BYTES


def _power(n: int) -> int:
    """The least power of two that is at least n, and at least 2."""
    return max(2, 1 << (n - 1).bit_length())

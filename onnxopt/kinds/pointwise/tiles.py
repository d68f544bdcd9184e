"""Tiles: the sides of the piece of a transposed domain that one block moves through shared memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onnxopt.costs import pointwise as launch
from onnxopt.program.extents import Extent
from onnxopt.program.hardware import STATIC_SHARED_BYTES, WARP
from onnxopt.program.indexing import Term

_COSTS = launch.numbers()
COLUMNS, _MAX_WHOLE = _COSTS.tile_columns, _COSTS.max_whole_rows
_LINE_BYTES = 128  # a cache line; a row of a tile is no shorter
_PADDING = 36  # the most padding elements of a row in shared memory
_MIN_BY_ROWS = 16  # the least columns of a tile that shared memory holds row by row (pointwise/tile_column.cuh)


@dataclasses.dataclass(frozen=True)
class Tile:
    """rows x columns elements, by blocks of `threads`, stored in vectors of `width`.

    whole: the tile has all rows of the domain. slides: in each column, the tile begins with the vector that holds its
    first row.
    """

    rows: int
    columns: int
    width: int
    threads: int
    whole: bool = False
    slides: bool = False


def choose(column: Term, count: Extent, sizes: Sequence[int], width: int) -> tuple[Tile, ...]:
    """The tiles for inputs that are contiguous along the term `column`, in the order to try; none if tiles do not pay.

    count: size of the domain. sizes: bytes of an element of each such input. width: the widest vector.
    """
    rows, columns = column.div.number, column.mod.number
    row_bytes = sum(sizes)
    area = launch.tile_area(count.number, max(sizes))
    limit = max(COLUMNS, _LINE_BYTES // max(sizes))
    wide = limit if columns is None else min(limit, _power(columns))
    if rows is not None and rows <= _MAX_WHOLE:
        tile = _whole(rows, columns, wide, area, width)
        if tile is not None:
            return (tile,) if _fits(tile, row_bytes) else ()
    if any(n is not None and n < _COSTS.min_tile_side for n in (rows, columns)) and not _is_strip(rows, columns):
        return ()
    if column.div.factor % width == 0:
        tiles = [_split(rows, wide, area, width, row_bytes)]
    elif rows is None:  # a tile for whole vectors of rows, then one for any number of rows
        tiles = [_split(rows, wide, area, width, row_bytes, slides=slides) for slides in (False, True)]
    elif rows < _COSTS.min_sliding_vectors * width or 1 < _widest(width, rows) == width // 2:
        tiles = [_split(rows, wide, area, _widest(width, rows), row_bytes)]
    else:
        tiles = [_split(rows, wide, area, width, row_bytes, slides=True)]
    return tuple(t for t in tiles if _fits(t, row_bytes))


def _is_strip(rows: int | None, columns: int | None) -> bool:
    """Whether there are few columns and many rows, as in SpaceToDepth."""
    return (
        columns is not None and rows is not None and columns < _COSTS.min_tile_side and rows >= 4 * _COSTS.min_tile_side
    )


def _whole(rows: int, columns: int | None, wide: int, area: launch.TileArea, width: int) -> Tile | None:
    """A tile of all rows and as many columns as the area allows; None where no vector or too few columns fit."""
    if columns is None or columns < _COSTS.min_read_columns:
        return None
    fit = max(_COSTS.min_read_columns, 1 << int(math.log2(max(1, area.elements // rows))))
    fit = min(fit, _power(columns)) if rows < _COSTS.min_tile_side else min(fit, wide)
    vector = _widest(width, rows * columns, rows * fit)
    if rows >= _COSTS.min_tile_side and vector == _widest(width, rows):
        return None
    if rows >= _COSTS.min_sliding_vectors * width and vector < width:
        return None  # a sliding tile instead
    return Tile(rows, fit, vector, _threads(rows * fit // vector, area), whole=True)


def _split(
    rows: int | None, columns: int, area: launch.TileArea, width: int, row_bytes: int, *, slides: bool = False
) -> Tile:
    """A tile of some of the rows."""
    limit = max(area.elements // columns // width * width, width)
    tile_rows = limit
    if rows is not None:  # make the last tile along the rows about as full as the others
        reach = rows + (width - 1 if slides else 0)
        tile_rows = -(-reach // (-(-reach // limit) * width)) * width
    tile = Tile(tile_rows, columns, width, area.threads, slides=slides)
    while not _fits(tile, row_bytes) and tile.rows // 2 >= max(width, _COSTS.min_tile_side):
        tile = dataclasses.replace(tile, rows=tile.rows // 2 // width * width)
    return dataclasses.replace(tile, threads=_threads(tile.rows * columns // width, area))


def _threads(vectors: int, area: launch.TileArea) -> int:
    """The number of threads for which every thread has the same number of vectors."""
    each = -(-vectors // area.threads)
    return -(-vectors // (each * WARP)) * WARP


def _widest(width: int, *numbers: int) -> int:
    """The widest vector, at most `width`, that divides all of these numbers."""
    return max(w for w in (16, 8, 4, 2, 1) if w <= width and all(n % w == 0 for n in numbers))


def _fits(tile: Tile, row_bytes: int) -> bool:
    held = tile.rows + (tile.width if tile.slides else 0)
    by_columns = tile.columns < _MIN_BY_ROWS
    elements = (held + _PADDING) * tile.columns if by_columns else held * (tile.columns + _PADDING)
    return elements * row_bytes <= STATIC_SHARED_BYTES


def _power(n: int) -> int:
    """The least power of two that is at least n, and at least 2."""
    return max(2, 1 << (n - 1).bit_length())

"""The table of launches, and the tiles that follow from it."""

from __future__ import annotations

import pytest

from onnxopt.costs import pointwise as launch
from onnxopt.kinds.pointwise import tiles
from onnxopt.program.extents import ONE, Extent
from onnxopt.program.indexing import Term


def _tiles(
    rows: int | str, columns: int | str, outer: int = 64, width: int = 8, size: int = 2
) -> tuple[tiles.Tile, ...]:
    def side(n: int | str) -> Extent:
        return Extent(n) if isinstance(n, int) else Extent(1, (n,))

    column = Term(side(rows), side(columns), ONE)
    return tiles.choose(column, side(rows) * side(columns) * outer, [size], width)


def test_a_block() -> None:
    block = launch.block()
    assert block.threads in (64, 128, 256, 512)
    assert block.unroll in (1, 2, 4)


@pytest.mark.parametrize("elements", [None, 1, 1 << 22, 1 << 28])
def test_a_tile_is_not_more_than_a_block_can_hold(elements: int | None) -> None:
    area = launch.tile_area(elements, 2)
    assert area.elements % area.threads == 0
    assert area.elements // area.threads <= 16


@pytest.mark.parametrize(
    ("rows", "columns", "kinds", "width"),
    [
        (3136, 192, ["cut"], 8),
        (8191, 8193, ["slides"], 8),  # no vector fits
        (197, 64, ["slides"], 8),  # tokens
        (196, 384, ["cut"], 4),  # half vectors
        (49, 768, ["whole"], 8),  # an image of 7 x 7: vectors go from one column to the next
        (49, 767, ["slides"], 8),
        (3, 224 * 224, ["whole"], 8),  # colours
        (12, 767, ["cut"], 4),  # too short to slide
        (16384, 2, ["cut"], 8),  # SpaceToDepth
        ("N", 64, ["cut", "slides"], 8),  # what is hoped for, and what fits any N
        (128, "N", ["cut"], 8),
    ],
)
def test_tiles(rows: int | str, columns: int | str, kinds: list[str], width: int) -> None:
    found = _tiles(rows, columns)
    assert ["whole" if t.whole else "slides" if t.slides else "cut" for t in found] == kinds
    for tile in found:
        assert tile.width == width
        assert not tile.whole or tile.rows == rows
        assert tile.rows * tile.columns % width == 0
        assert tile.rows * tile.columns <= 2 * launch.tile_area(None, 2).elements
        assert 32 <= tile.threads <= launch.tile_area(None, 2).threads


@pytest.mark.parametrize(("rows", "columns"), [(2, 6), (5, 8), (4, 4)])
def test_what_is_too_short_has_no_tile(rows: int, columns: int) -> None:
    assert _tiles(rows, columns) == ()


@pytest.mark.parametrize(("rows", "width"), [(392, 8), (1000, 8), (8191, 8), (513, 4)])
def test_tiles_are_about_equally_full(rows: int, width: int) -> None:
    (tile,) = _tiles(rows, 768, width=width)
    reach = rows + (width - 1 if tile.slides else 0)
    assert reach <= -(-reach // tile.rows) * tile.rows < reach * 1.1


def test_many_wide_inputs_take_less_shared_memory() -> None:
    (wide,) = _tiles(4096, 4096, width=2, size=8 * 5)
    assert wide.rows * (wide.columns + 4) * 8 * 5 <= 48 << 10


def test_rows_of_bytes_are_as_long_as_a_line_of_the_cache() -> None:
    (tile,) = _tiles(4096, 65536, width=16, size=1)
    assert (tile.columns, tile.rows * tile.columns) == (128, 2 * launch.tile_area(None, 2).elements)

"""The table of launches, and the tiles that follow from it."""

from __future__ import annotations

import pytest

from onnxopt import launch, tiles
from onnxopt.extents import ONE, Extent
from onnxopt.indexing import Term


def _tile(rows: int | str, columns: int | str, outer: int = 64, width: int = 8, size: int = 2) -> tiles.Tile | None:
    def side(n: int | str) -> Extent:
        return Extent(n) if isinstance(n, int) else Extent(1, (n,))

    column = Term(side(rows), side(columns), ONE)
    return tiles.choose(column, side(rows) * side(columns) * outer, size, width)


@pytest.mark.parametrize("streams", [1, 2, 5])
@pytest.mark.parametrize("size", [None, 1000, 1 << 20, 1 << 30])
def test_every_kernel_finds_a_row(streams: int, size: int | None) -> None:
    block = launch.block(streams, size)
    assert block.threads in (64, 128, 256, 512)
    assert block.unroll in (1, 2, 4)


def test_a_row_for_large_tensors_is_not_for_unknown_ones() -> None:
    small, unknown, large = (launch.block(1, size) for size in (1000, None, 16 << 20))
    assert unknown == small != large
    assert launch.block(2, 16 << 20) == small  # several operands keep the memory busy by themselves


@pytest.mark.parametrize("elements", [None, 1, 1 << 22, 1 << 28])
def test_a_tile_is_not_more_than_a_block_can_hold(elements: int | None) -> None:
    area = launch.tile_area(elements)
    assert area.elements % area.threads == 0
    assert area.elements // area.threads <= 16


@pytest.mark.parametrize(
    ("rows", "columns", "whole", "width"),
    [
        (3136, 192, False, 8),
        (8191, 8193, False, 1),  # no vector fits
        (196, 384, False, 4),
        (49, 768, True, 8),  # an image of 7 x 7: vectors go from one channel to the next
        (49, 767, True, 1),
        (3, 224 * 224, True, 8),  # colours
        (16384, 2, False, 8),  # SpaceToDepth
        ("N", 64, False, 1),
        (128, "N", False, 8),
    ],
)
def test_tiles(rows: int | str, columns: int | str, whole: bool, width: int) -> None:
    tile = _tile(rows, columns)
    if rows == 49 and columns == 767:
        assert tile is not None and not tile.whole  # nothing is gained by crossing columns
        return
    assert tile is not None
    assert (tile.whole, tile.width) == (whole, width)
    assert not whole or tile.rows == rows
    assert tile.rows * tile.columns % width == 0
    assert tile.rows * tile.columns <= 2 * launch.tile_area(None).elements


@pytest.mark.parametrize(("rows", "columns"), [(2, 6), (5, 8), (4, 4)])
def test_what_is_too_short_has_no_tile(rows: int, columns: int) -> None:
    assert _tile(rows, columns) is None


def test_tiles_are_about_equally_full() -> None:
    tile = _tile(197, 768)
    assert tile is not None
    assert -(-197 // tile.rows) * tile.rows < 197 * 1.1


def test_many_wide_inputs_take_less_shared_memory() -> None:
    wide = _tile(4096, 4096, width=2, size=8 * 5)
    assert wide is not None
    assert wide.rows * (wide.columns + 4) * 8 * 5 <= 48 << 10

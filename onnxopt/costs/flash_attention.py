"""The tiles of attention of many queries."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from onnxopt.costs.measured import load

GROUP_QUERIES = 64  # of a warpgroup


@dataclasses.dataclass(frozen=True)
class FlashAttentionCosts:
    """The numbers of costs/data/flash_attention.json, which says what each is."""

    max_short: int
    max_short_biased: int
    max_short_widths: tuple[int, ...]
    max_local: int
    short_warps: tuple[int, ...]
    tiles: tuple[Mapping[str, Any], ...]
    biased_tiles: Mapping[int, tuple[tuple[int, ...], ...]]
    long_tile: tuple[int, ...]
    long_blocks: int
    long_widths: tuple[int, int]
    others: tuple[tuple[int, ...], ...]
    float32_tiles: tuple[Mapping[str, Any], ...]
    float32_biased_tiles: tuple[Mapping[str, Any], ...]
    float32_others: tuple[tuple[int, ...], ...]
    hopper: tuple[Mapping[str, Any], ...]
    narrow_biased_tiles: int
    hopper_short: Mapping[str, Any]
    hopper_short_above: int
    hopper_short_keys: tuple[int, ...]

    def tiles_of(self, width: int, *, biased: bool, whole: bool) -> tuple[tuple[int, ...], ...]:
        """The tiles of heads of so many elements. whole: queries see all keys."""
        row = next(row for row in self.tiles if width <= row["width"])
        tiles: tuple[tuple[int, ...], ...] = row["tiles"]
        if biased:
            return self.biased_tiles.get(row["width"], tiles)
        narrowest, widest = self.long_widths
        return (self.long_tile, *tiles) if whole and narrowest <= width <= widest else tiles

    def float32_tiles_of(self, width: int, *, biased: bool) -> tuple[tuple[int, ...], ...]:
        """The tiles of float32 heads of so many elements."""
        rows = self.float32_biased_tiles if biased else self.float32_tiles
        row = next(row for row in rows if width <= row["width"])
        tiles: tuple[tuple[int, ...], ...] = row["tiles"]
        return tiles

    def hopper_tiles(self, width: int, *, biased: bool) -> tuple[Mapping[str, Any], ...]:
        """The tiles of Hopper, of heads of so many elements."""
        row = next(row for row in self.hopper if width <= row["width"])
        tiles: tuple[Mapping[str, Any], ...] = row["tiles"]
        return tiles[: self.narrow_biased_tiles] if biased and row is self.hopper[0] else tiles

    def hopper_microseconds(self, width: int, heads: int, queries: int, keys: int, multiprocessors: int) -> float:
        """What the fastest tile of Hopper is expected to take, as custom_ops/cuda/flash_attention.cc computes it.

        heads: of all sequences. The blocks of a multiprocessor run some at a time, in waves.
        """
        times = []
        for tile in self.hopper_tiles(width, biased=False):
            rows = GROUP_QUERIES * tile["count"]
            blocks = math.ceil(math.ceil(queries / rows) * heads / multiprocessors)
            scores = blocks * rows * math.ceil(keys / tile["keys"]) * tile["keys"] * 1e-6
            times.append(math.ceil(blocks / tile["blocks"]) * tile["wave"] + scores * tile["scores"])
        return min(times)

    def hopper_short_tile(self, keys: int) -> int:
        """Keys of the tile that holds all keys of heads of 64; 0 where several tiles take less time."""
        holding = next((tile for tile in self.hopper_short_keys if keys <= tile), 0)
        return holding if keys > self.hopper_short_above else 0


@functools.cache
def numbers() -> FlashAttentionCosts:
    """The measured numbers."""
    return load("flash_attention", FlashAttentionCosts)

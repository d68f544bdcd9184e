"""The entry points of attention of many queries: tiles of queries and keys, by how many there are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from onnxopt.costs.flash_attention import GROUP_QUERIES, numbers
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.attention import Attention
from onnxopt.kinds.flash_attention.lower import attention_of
from onnxopt.program import flash_attention
from onnxopt.program.flash_attention import FlashAttention, FlashAttentionVariant, FlashWarpgroups
from onnxopt.program.hardware import MAX_SHARED_BYTES, WARP

ROWS = 16  # queries of a warp
_ACCESS = 16
_MAX_SHARED = 64 << 10  # bytes that a block can have on every GPU
_COSTS = numbers()


class Tile(NamedTuple):
    """Sides of a tile: warps of `bands` times 16 queries each, and keys, for which there are `stages` places."""

    warps: int
    keys: int
    stages: int = 2
    bands: int = 1


_HELD_STEPS = 8  # of 32 bytes of queries, in the bands of a warp, that registers hold; exact ones take two
_HOPPER_PANEL = 128  # bytes of a row in shared memory, of 64 elements
_HOPPER_GROUP = 1024  # bytes that what a warpgroup reads is aligned to
_HOPPER_ALIGNED = 1008  # bytes at most in front of the first tile


class _HopperTile(NamedTuple):
    """Keys of a tile, places for tiles, and how warpgroups multiply."""

    keys: int
    stages: int
    warpgroups: FlashWarpgroups


def _hopper_tile(row: Mapping[str, Any]) -> _HopperTile:
    fields = {name: value for name, value in row.items() if name not in ("keys", "stages")}
    return _HopperTile(row["keys"], row["stages"], FlashWarpgroups(**fields))


def choose(
    name: str, meaning: FlashAttention, regions: Sequence[Region], shapes: Shapes
) -> tuple[FlashAttentionVariant, ...]:
    """Short ones for the regions that they fit, those for any number of keys, and one that runs every call anywhere."""
    access = access_of(meaning)
    attentions = [attention_of(region.nodes[-1], shapes) for region in regions]
    fit = []
    for attention in attentions:
        queries, keys = attention.lengths
        if isinstance(keys, int) and 1 <= keys <= _max_short(attention, shapes):
            fit.append((queries, keys))
    short = [variant(name, meaning, Tile(_warps(q), -(-k // ROWS) * ROWS), access, short=True) for q, k in fit]
    short = [v for v in short if v.shared <= MAX_SHARED_BYTES]
    chosen = list(short)
    if len(short) < len(attentions) or any(v.shared > _MAX_SHARED for v in short):
        chosen += [variant(name, meaning, tile, access) for tile in _tiles(meaning)]
        chosen = [v for v in chosen if v.shared <= MAX_SHARED_BYTES]
    long = any(v.keys > _COSTS.max_short for v in short) and meaning.width in _COSTS.max_short_widths
    if len(short) < len(attentions) or long:
        chosen += hopper(name, meaning, [a.lengths[1] for a in attentions])
    chosen.append(variant(name, meaning, _min_rows(meaning), meaning.element_bytes))
    if meaning.dtype == "float32":
        chosen += [_exact(meaning, v) for v in chosen]
    return tuple({v.symbol: v for v in chosen if v.shared <= MAX_SHARED_BYTES}.values())


def _exact(meaning: FlashAttention, rounded: FlashAttentionVariant) -> FlashAttentionVariant:
    """An entry point of float32 that keeps what TF32 rounds off."""
    tile = Tile(rounded.threads // WARP, rounded.keys, rounded.stages, rounded.bands)
    shared = shared_bytes(meaning, tile, short=rounded.short_rows, exact=True)
    return dataclasses.replace(rounded, symbol=f"{rounded.symbol}x", exact=True, shared=shared)


def hopper(name: str, meaning: FlashAttention, counts: Sequence[object]) -> Iterator[FlashAttentionVariant]:
    """Entry points for Hopper, where it has some. counts: of keys; those that are no integers may be any number."""
    if not on_warpgroups(meaning):
        return
    short = {_hopper_short(meaning, keys) for keys in counts}
    for keys in sorted(short - {0}):
        yield _hopper_variant(name, meaning, _hopper_tile({**_COSTS.hopper_short, "keys": keys}), short=True)
    if 0 in short or not all(isinstance(keys, int) for keys in counts):
        for row in _COSTS.hopper_tiles(meaning.width, biased=meaning.bias is not None):
            yield _hopper_variant(name, meaning, _hopper_tile(row))


def _hopper_short(meaning: FlashAttention, keys: object) -> int:
    """Keys of the tile that holds all of them, where that takes less time than several tiles; else 0."""
    if meaning.width != 64:
        return 0
    if not isinstance(keys, int):
        return _COSTS.hopper_short_keys[-1]
    return _COSTS.hopper_short_tile(keys)


def on_warpgroups(meaning: FlashAttention) -> bool:
    """Whether there are entry points for Hopper: scores have no cap beside a bias, and queries see many keys."""
    if meaning.dtype == "float32":
        return False
    seen = flash_attention.seen(meaning.before, meaning.after)
    plain = (meaning.cap is None or meaning.bias is None) and (seen is None or seen > _COSTS.max_local)
    return plain and flash_attention.is_hopper(meaning.width, meaning.values) and access_of(meaning) == _ACCESS


def _hopper_variant(
    name: str, meaning: FlashAttention, tile: _HopperTile, *, short: bool = False
) -> FlashAttentionVariant:
    keys, stages, warpgroups = tile
    symbol = f"{name}_h{warpgroups.count}k{keys}{'s' if short else f't{stages}'}"
    row = _HOPPER_PANEL * -(-meaning.width // (_HOPPER_PANEL // 2))
    tiles = 2 * stages * keys * row
    group_bytes = GROUP_QUERIES * max(row, _pitch(meaning.width))
    queries = warpgroups.count * -(-group_bytes // _HOPPER_GROUP) * _HOPPER_GROUP
    bias = 2 * stages * keys if meaning.bias is not None else 0
    shared = _HOPPER_ALIGNED + tiles + queries + 16 * stages * warpgroups.copier + bias
    threads = 4 * WARP * (warpgroups.count + warpgroups.copier)
    return FlashAttentionVariant(
        symbol, "", 32, _ACCESS // 2, 1, threads, waits=True, keys=keys, stages=stages, short_rows=short, shared=shared,
        warpgroups=warpgroups,
    )  # fmt: skip


def _max_short(attention: Attention, shapes: Shapes) -> int:
    """The most keys that one tile should hold."""
    if attention.meaning.bias is None:
        return _COSTS.max_short
    bias = shapes.dims(attention.inputs[attention.meaning.bias])
    one_row = bias is not None and len(bias) > 2 and bias[-2] == 1
    return _COSTS.max_short if one_row else _COSTS.max_short_biased


def others(name: str, meaning: FlashAttention) -> Iterator[FlashAttentionVariant]:
    """Further tiles, for `tune`."""
    is_float32 = meaning.dtype == "float32"
    for tile in (Tile(*sides) for sides in (_COSTS.float32_others if is_float32 else _COSTS.others)):
        for short in (False, True):
            if short and tile != Tile(tile.warps, tile.keys):
                continue  # it has one place and one band
            other = variant(name, meaning, tile, access_of(meaning), short=short)
            if other.shared <= (MAX_SHARED_BYTES if is_float32 else _MAX_SHARED):
                yield from (other, _exact(meaning, other)) if is_float32 else (other,)


def access_of(meaning: FlashAttention) -> int:
    """Bytes that every row of q, k, v and of the result is aligned to where the tensors themselves are to 16."""
    steps = [meaning.width, meaning.values]
    for heads, *_ in meaning.operands:
        steps += [heads.row, heads.first, heads.step]
    return math.gcd(_ACCESS, *(meaning.element_bytes * step for step in steps))


def _tiles(meaning: FlashAttention) -> tuple[Tile, ...]:
    widest = max(meaning.width, meaning.values)
    whole = meaning.before is None and meaning.after is None
    if meaning.dtype == "float32":
        return tuple(Tile(*of) for of in _COSTS.float32_tiles_of(widest, biased=meaning.bias is not None))
    sides = _COSTS.tiles_of(widest, biased=meaning.bias is not None, whole=whole)
    return tuple(Tile(*of) for of in sides)


def _min_rows(meaning: FlashAttention) -> Tile:
    """The tile whose one stage every GPU holds."""
    widest = max(meaning.width, meaning.values)
    if meaning.dtype == "float32" and widest > 64:
        return Tile(2, 32, 1) if widest <= 128 else Tile(1, 16, 1)
    return Tile(4, 64, 1) if widest <= 64 else Tile(2, 32, 1)


def _warps(queries: object) -> int:
    limit = _COSTS.short_warps[-1]
    needed = -(-queries // ROWS) if isinstance(queries, int) else limit
    return next(warps for warps in _COSTS.short_warps if warps >= min(needed, limit))


def variant(
    name: str, meaning: FlashAttention, tile: Tile, access: int, *, short: bool = False
) -> FlashAttentionVariant:
    """An entry point of a tile. short: see FlashAttentionVariant."""
    stages = 1 if short else tile.stages
    symbol = f"{name}_w{tile.warps}{f'b{tile.bands}' if tile.bands > 1 else ''}k{tile.keys}"
    symbol += f"{'s' if short else f't{stages}'}a{access}"
    shared = shared_bytes(meaning, tile, short=short)
    return FlashAttentionVariant(
        symbol, "", 32, access // meaning.element_bytes, 1, WARP * tile.warps, waits=True, keys=tile.keys,
        stages=stages, bands=tile.bands, short_rows=short, access=access, shared=shared,
    )  # fmt: skip


def _pitch(width: int, element_bytes: int = 2) -> int:
    """Bytes from a row to the next, an odd number of 16."""
    return int(16 * (-(-width // 8) * element_bytes // 2 | 1))


def shared_bytes(meaning: FlashAttention, tile: Tile, *, short: bool, exact: bool = False) -> int:
    """Bytes of shared memory of a block, as cuda_kernels/flash_attention/ counts them."""
    size = meaning.element_bytes
    pitch, value_pitch = (_pitch(width, size) for width in (meaning.width, meaning.values))
    queries = ROWS * tile.warps * tile.bands * max(pitch, value_pitch)
    bias = tile.keys * size if meaning.bias is not None else 0
    values = tile.keys * value_pitch
    stage = tile.keys * pitch + bias + values
    if short:
        return 2 * (queries + stage)
    steps = tile.bands * (-(-meaning.width // 8) * size // 4) * (2 if exact else 1)
    lends = tile.stages == 1 and steps <= _HELD_STEPS
    return stage - values + max(values, queries) if lends else queries + tile.stages * stage

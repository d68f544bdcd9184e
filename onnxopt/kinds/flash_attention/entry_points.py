"""The entry points of attention of many queries: tiles of queries and keys, by how many there are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.attention import Attention
from onnxopt.kinds.flash_attention.lower import known
from onnxopt.program import flash_attention
from onnxopt.program.flash_attention import FlashAttention
from onnxopt.program.hardware import WARP

ROWS = 16  # queries of a warp
_ACCESS = 16
_LEAST_ACCESS = 2
_MOST_SHARED = 64 << 10  # bytes that a block can have on every GPU
_MOST_SHARED_OF_ANY = 227 << 10  # on the one where it has most
_MOST_WARPS = 8
# Keys that one tile holds, where it is faster than several tiles; more with a bias that differs between queries.
_MOST_SHORT, _MOST_SHORT_BIASED = 80, 128
_NO_SHORT = (64, 128)  # elements of a head, whose tiles for Hopper are faster from the smaller of these numbers on
_MOST_LOCAL = 512  # keys that a query of local attention sees, up to which smaller tiles visit fewer keys


class Tile(NamedTuple):
    """Sides of a tile: warps of `bands` times 16 queries each, and keys, for which there are `stages` places."""

    warps: int
    keys: int
    stages: int = 2
    bands: int = 1


# Tiles by the elements of the wider head: of the first row that is as wide. Measured on one H200 (benchmarks/notes).
# The last of each needs the least shared memory.
_TILES = (
    (32, (Tile(8, 128),)),
    (48, (Tile(8, 64),)),
    (64, (Tile(4, 64),)),
    (80, (Tile(4, 128, 1), Tile(4, 64, 1))),
    (96, (Tile(8, 64), Tile(4, 64, 1))),
    (128, (Tile(4, 64, 1),)),
    (160, (Tile(4, 128, 1), Tile(4, 64, 1))),
    (192, (Tile(8, 128, 1), Tile(4, 64, 1), Tile(2, 32))),
    (256, (Tile(4, 64, 1), Tile(2, 32))),
)
# With a bias, in place of those of the table's row.
_BIASED = {
    32: (Tile(4, 64, 1),),
    48: (Tile(4, 128),),
    64: (Tile(4, 64, 1),),
    80: (Tile(8, 128, 1),),
    96: (Tile(8, 128, 1),),
    160: (Tile(8, 128, 1), Tile(4, 64, 1)),
    192: (Tile(8, 64, 1), Tile(4, 64, 1), Tile(2, 32)),
    256: (Tile(8, 64, 1), Tile(4, 64, 1), Tile(2, 32)),
}
_LONG = Tile(4, 64, 1, bands=2)  # of heads of 72 to 128 elements that see all keys, where there are many blocks
_NARROWEST_LONG, _WIDEST_LONG = 72, 128
_HELD_STEPS = 8  # of 16 elements of queries, in the bands of a warp, that registers hold
_HOPPER_ROWS = 64  # queries of a warpgroup
_HOPPER_PANEL = 128  # bytes of a row in shared memory, of 64 elements
_HOPPER_GROUP = 1024  # bytes that what a warpgroup reads is aligned to
_HOPPER_ALIGNED = 1008  # bytes at most in front of the first tile
_OTHERS = (
    *(Tile(warps, keys) for warps, keys in (
        (2, 32), (4, 32), (2, 64), (4, 64), (8, 64), (4, 80), (8, 80), (4, 112), (2, 128), (4, 128), (8, 128))),
    Tile(4, 64, 1), Tile(4, 64, 1, bands=2), Tile(4, 32, bands=2),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Warpgroups:
    """How an entry point for Hopper multiplies: by warpgroups of 64 queries each.

    count: of the warpgroups. copier: one more brings keys and values. in_turn: they ask for products one after the
    other. blocks: that a multiprocessor holds. wave, scores: microseconds that the blocks of a multiprocessor take
    whatever there is to do, and for a million scores; by them the library chooses between entry points.
    """

    count: int
    copier: bool
    in_turn: bool
    blocks: int
    wave: float
    scores: float


# Tiles of Hopper by the elements of a head, of the first row that is as wide: keys, stages and warpgroups. Measured on
# one H100 and one H200 (benchmarks/notes: attention).
_HOPPER_TILE = 128
_HOPPER = (
    (
        64,
        (
            (_HOPPER_TILE, 2, Warpgroups(1, False, False, 3, 2.6, 86.0)),
            (_HOPPER_TILE, 3, Warpgroups(2, True, True, 1, 2.8, 79.0)),
            (_HOPPER_TILE, 3, Warpgroups(3, True, True, 1, 3.1, 64.0)),
        ),
    ),
    (
        96,
        (
            (64, 2, Warpgroups(1, True, False, 2, 6.2, 132.0)),
            (_HOPPER_TILE, 3, Warpgroups(2, True, True, 1, 6.9, 99.0)),
        ),
    ),
    (
        128,
        (
            (64, 2, Warpgroups(1, True, False, 2, 3.9, 121.0)),
            (_HOPPER_TILE, 2, Warpgroups(2, True, True, 1, 4.7, 94.0)),
        ),
    ),
    (
        192,
        (
            (48, 2, Warpgroups(1, True, False, 2, 5.9, 186.0)),
            (112, 2, Warpgroups(2, True, True, 1, 6.7, 133.0)),
        ),
    ),
    (
        256,
        (
            (64, 2, Warpgroups(1, True, False, 1, 5.5, 221.0)),
            (64, 2, Warpgroups(2, True, True, 1, 5.8, 198.0)),
        ),
    ),
)
_HOPPER_SHORT = Warpgroups(1, False, False, 3, 2.2, 79.0)  # of heads of 64, all keys in one tile
_HOPPER_SHORT_KEYS = (160, 176, 192, 208)


@dataclasses.dataclass(frozen=True)
class FlashVariant(Variant):
    """One entry point: threads / 32 warps of `bands` times 16 queries each, `keys` keys at a time in `stages` places.

    short: takes at most `keys` keys, and one sequence after the other. access: bytes that rows of all tensors are
    aligned to. shared: bytes of shared memory of a block. warpgroups: of an entry point that runs on Hopper alone.
    """

    keys: int = 64
    stages: int = 1
    bands: int = 1
    short: bool = False
    access: int = _ACCESS
    shared: int = 0
    warpgroups: Warpgroups | None = None


def choose(name: str, meaning: FlashAttention, regions: Sequence[Region], shapes: Shapes) -> tuple[FlashVariant, ...]:
    """Short ones for the regions that they fit, those for any number of keys, and one that runs every call anywhere."""
    access = access_of(meaning)
    attentions = [known(region.nodes[-1], shapes) for region in regions]
    fit = []
    for attention in attentions:
        queries, keys = attention.lengths
        if isinstance(keys, int) and 1 <= keys <= _most_short(attention, shapes):
            fit.append((queries, keys))
    short = [variant(name, meaning, Tile(_warps(q), -(-k // ROWS) * ROWS), access, short=True) for q, k in fit]
    short = [v for v in short if v.shared <= _MOST_SHARED_OF_ANY]
    chosen = list(short)
    if len(short) < len(attentions) or any(v.shared > _MOST_SHARED for v in short):
        chosen += [variant(name, meaning, tile, access) for tile in _tiles(meaning)]
    if len(short) < len(attentions) or any(v.keys > _MOST_SHORT and meaning.width in _NO_SHORT for v in short):
        chosen += hopper(name, meaning, [a.lengths[1] for a in attentions])
    chosen.append(variant(name, meaning, _least(meaning), _LEAST_ACCESS))
    return tuple({v.symbol: v for v in chosen}.values())


def hopper(name: str, meaning: FlashAttention, counts: Sequence[object]) -> Iterator[FlashVariant]:
    """Entry points for Hopper, where it has some. counts: of keys; those that are no integers may be any number."""
    if not on_warpgroups(meaning):
        return
    short = {_hopper_short(meaning, keys) for keys in counts}
    for keys in sorted(short - {0}):
        yield _hopper_variant(name, meaning, keys, 1, _HOPPER_SHORT, short=True)
    if 0 in short or not all(isinstance(keys, int) for keys in counts):
        most, tiles = next(row for row in _HOPPER if meaning.width <= row[0])
        # Loads of a bias take registers: one warpgroup is always faster then where heads are narrow.
        narrow = meaning.bias is not None and most == _HOPPER[0][0]
        for keys, stages, warpgroups in tiles[:1] if narrow else tiles:
            yield _hopper_variant(name, meaning, keys, stages, warpgroups)


def _hopper_short(meaning: FlashAttention, keys: object) -> int:
    """Keys of the tile that holds all of them, where that is faster than several tiles; else 0."""
    if meaning.width != 64:
        return 0
    if not isinstance(keys, int):
        return _HOPPER_SHORT_KEYS[-1]
    holding = next((tile for tile in _HOPPER_SHORT_KEYS if keys <= tile), 0)
    return holding if keys > _HOPPER_TILE else 0


def on_warpgroups(meaning: FlashAttention) -> bool:
    """Whether there are entry points for Hopper: scores have no cap beside a bias, and queries see many keys."""
    seen = flash_attention.seen(meaning.before, meaning.after)
    plain = (meaning.cap is None or meaning.bias is None) and (seen is None or seen > _MOST_LOCAL)
    return plain and flash_attention.is_hopper(meaning.width, meaning.values) and access_of(meaning) == _ACCESS


def _hopper_variant(
    name: str, meaning: FlashAttention, keys: int, stages: int, warpgroups: Warpgroups, *, short: bool = False
) -> FlashVariant:
    symbol = f"{name}_h{warpgroups.count}k{keys}{'s' if short else f't{stages}'}"
    row = _HOPPER_PANEL * -(-meaning.width // (_HOPPER_PANEL // 2))
    tiles = 2 * stages * keys * row
    of_group = _HOPPER_ROWS * max(row, _pitch(meaning.width) * 2)
    queries = warpgroups.count * -(-of_group // _HOPPER_GROUP) * _HOPPER_GROUP
    bias = 2 * stages * keys if meaning.bias is not None else 0
    shared = _HOPPER_ALIGNED + tiles + queries + 16 * stages * warpgroups.copier + bias
    threads = 4 * WARP * (warpgroups.count + warpgroups.copier)
    return FlashVariant(
        symbol, "", 32, _ACCESS // 2, 1, threads, waits=True, keys=keys, stages=stages, short=short, shared=shared,
        warpgroups=warpgroups,
    )  # fmt: skip


def _most_short(attention: Attention, shapes: Shapes) -> int:
    """The most keys that one tile should hold."""
    if attention.meaning.bias is None:
        return _MOST_SHORT
    bias = shapes.dims(attention.inputs[attention.meaning.bias])
    return _MOST_SHORT if bias is not None and len(bias) > 2 and bias[-2] == 1 else _MOST_SHORT_BIASED


def others(name: str, meaning: FlashAttention) -> Iterator[FlashVariant]:
    """Further tiles, for `tune`."""
    for tile in _OTHERS:
        for short in (False, True):
            if short and tile != Tile(tile.warps, tile.keys):
                continue  # it has one place and one band
            made = variant(name, meaning, tile, access_of(meaning), short=short)
            if made.shared <= _MOST_SHARED:
                yield made


def access_of(meaning: FlashAttention) -> int:
    """Bytes that every row of q, k, v and of the result is aligned to where the tensors themselves are to 16."""
    steps = [meaning.width, meaning.values]
    for heads, *_ in meaning.operands:
        steps += [heads.row, heads.first, heads.step]
    return math.gcd(_ACCESS, *(2 * step for step in steps))


def _tiles(meaning: FlashAttention) -> tuple[Tile, ...]:
    widest = max(meaning.width, meaning.values)
    most, tiles = next(row for row in _TILES if widest <= row[0])
    if meaning.bias is not None:
        return _BIASED.get(most, tiles)
    whole = meaning.before is None and meaning.after is None
    return (_LONG, *tiles) if whole and _NARROWEST_LONG <= widest <= _WIDEST_LONG else tiles


def _least(meaning: FlashAttention) -> Tile:
    """The tile whose one stage every GPU holds."""
    return Tile(4, 64, 1) if max(meaning.width, meaning.values) <= 64 else Tile(2, 32, 1)


def _warps(queries: object) -> int:
    needed = -(-queries // ROWS) if isinstance(queries, int) else _MOST_WARPS
    return next(warps for warps in (1, 2, 4, 4, 8) if warps >= min(needed, 4))


def variant(name: str, meaning: FlashAttention, tile: Tile, access: int, *, short: bool = False) -> FlashVariant:
    """An entry point of a tile. short: see FlashVariant."""
    stages = 1 if short else tile.stages
    symbol = f"{name}_w{tile.warps}{f'b{tile.bands}' if tile.bands > 1 else ''}k{tile.keys}"
    symbol += f"{'s' if short else f't{stages}'}a{access}"
    shared = shared_bytes(meaning, tile, short=short)
    return FlashVariant(
        symbol, "", 32, access // 2, 1, WARP * tile.warps, waits=True, keys=tile.keys, stages=stages, bands=tile.bands,
        short=short, access=access, shared=shared,
    )  # fmt: skip


def _pitch(width: int) -> int:
    """Elements from a row to the next, an odd number of 16 bytes."""
    return int(8 * (-(-width // 8) | 1))


def shared_bytes(meaning: FlashAttention, tile: Tile, *, short: bool) -> int:
    """Bytes of shared memory of a block, as cuda_kernels/flash_attention/ counts them."""
    pitch, value_pitch = map(_pitch, (meaning.width, meaning.values))
    queries = ROWS * tile.warps * tile.bands * max(pitch, value_pitch) * 2
    bias = tile.keys * 2 if meaning.bias is not None else 0
    values = tile.keys * value_pitch * 2
    stage = tile.keys * pitch * 2 + bias + values
    if short:
        return 2 * (queries + stage)
    lends = tile.stages == 1 and tile.bands * (-(-meaning.width // 8) // 2) <= _HELD_STEPS
    return stage - values + max(values, queries) if lends else queries + tile.stages * stage

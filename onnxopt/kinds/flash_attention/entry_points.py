"""The entry points of attention of many queries: tiles of queries and keys, by how many there are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.attention import Attention
from onnxopt.kinds.flash_attention.lower import known
from onnxopt.program.flash_attention import FlashAttention
from onnxopt.program.hardware import WARP

ROWS = 16  # queries of a warp
_ACCESS = 16
_LEAST_ACCESS = 2
_MOST_SHARED = 64 << 10  # bytes that a block can have on every GPU
_MOST_WARPS = 8
# Keys that one tile holds, where it is faster than several tiles; more with a bias that differs between queries.
_MOST_SHORT, _MOST_SHORT_BIASED = 80, 128
# Sides of a tile, (warps, keys), by the elements of the wider head: of the first row that is as wide. Measured on one
# H200 (benchmarks/notes.md). The last of each needs the least shared memory.
_TILES = (
    (32, ((8, 128),)),
    (48, ((4, 128),)),
    (64, ((4, 64),)),
    (96, ((4, 128), (4, 64), (4, 32))),
    (128, ((4, 128), (4, 64), (4, 32))),
    (160, ((4, 64), (4, 32))),
    (256, ((4, 64), (2, 32))),
)
_OTHERS = ((2, 32), (4, 32), (2, 64), (4, 64), (8, 64), (4, 80), (8, 80), (4, 112), (2, 128), (4, 128), (8, 128))


@dataclasses.dataclass(frozen=True)
class FlashVariant(Variant):
    """One entry point: threads / 32 warps of 16 queries each, `keys` keys at a time in `stages` places.

    short: takes at most `keys` keys, and one sequence after the other. access: bytes that rows of all tensors are
    aligned to. shared: bytes of shared memory of a block.
    """

    keys: int = 64
    stages: int = 1
    short: bool = False
    access: int = _ACCESS
    shared: int = 0


def choose(name: str, meaning: FlashAttention, regions: Sequence[Region], shapes: Shapes) -> tuple[FlashVariant, ...]:
    """Short ones for the regions that they fit, those for any number of keys, and one that runs every call anywhere."""
    access = access_of(meaning)
    attentions = [known(region.nodes[-1], shapes) for region in regions]
    fit = []
    for attention in attentions:
        queries, keys = attention.lengths
        if isinstance(keys, int) and 1 <= keys <= _most_short(attention, shapes):
            fit.append((queries, keys))
    chosen = [variant(name, meaning, _warps(q), -(-k // ROWS) * ROWS, True, access) for q, k in fit]
    if len(fit) < len(attentions) or any(v.shared > _MOST_SHARED for v in chosen):
        chosen += [variant(name, meaning, *tile, False, access) for tile in _tiles(meaning)]
    chosen.append(variant(name, meaning, *_least(meaning), False, _LEAST_ACCESS, stages=1))
    return tuple({v.symbol: v for v in chosen}.values())


def _most_short(attention: Attention, shapes: Shapes) -> int:
    """The most keys that one tile should hold."""
    if attention.meaning.bias is None:
        return _MOST_SHORT
    bias = shapes.dims(attention.inputs[attention.meaning.bias])
    return _MOST_SHORT if bias is not None and len(bias) > 2 and bias[-2] == 1 else _MOST_SHORT_BIASED


def others(name: str, meaning: FlashAttention) -> Iterator[FlashVariant]:
    """Further tiles, for `tune`."""
    for warps, keys in _OTHERS:
        for short in (False, True):
            made = variant(name, meaning, warps, keys, short, access_of(meaning))
            if made.shared <= _MOST_SHARED:
                yield made


def access_of(meaning: FlashAttention) -> int:
    """Bytes that every row of q, k, v and of the result is aligned to where the tensors themselves are to 16."""
    steps = [meaning.width, meaning.values]
    for heads, *_ in meaning.operands:
        steps += [heads.row, heads.first, heads.step]
    return math.gcd(_ACCESS, *(2 * step for step in steps))


def _tiles(meaning: FlashAttention) -> tuple[tuple[int, int], ...]:
    widest = max(meaning.width, meaning.values)
    return next(tiles for most, tiles in _TILES if widest <= most)


def _least(meaning: FlashAttention) -> tuple[int, int]:
    """Of the tile whose one stage every GPU holds."""
    return (4, 64) if max(meaning.width, meaning.values) <= 64 else (2, 32)


def _warps(queries: object) -> int:
    needed = -(-queries // ROWS) if isinstance(queries, int) else _MOST_WARPS
    return next(warps for warps in (1, 2, 4, 4, 8) if warps >= min(needed, 4))


def variant(
    name: str, meaning: FlashAttention, warps: int, keys: int, short: bool, access: int, stages: int = 2
) -> FlashVariant:
    """An entry point of these sides. short: see FlashVariant."""
    stages = 1 if short else stages
    symbol = f"{name}_w{warps}k{keys}{'s' if short else f't{stages}'}a{access}"
    shared = shared_bytes(meaning, warps, keys, stages, short)
    return FlashVariant(
        symbol, "", 32, access // 2, 1, WARP * warps, waits=True, keys=keys, stages=stages, short=short,
        access=access, shared=shared,
    )  # fmt: skip


def shared_bytes(meaning: FlashAttention, warps: int, keys: int, stages: int, short: bool) -> int:
    """Bytes of shared memory of a block, as cuda_kernels/flash_attention/ counts them."""
    pitch, value_pitch = (8 * (-(-n // 8) | 1) for n in (meaning.width, meaning.values))
    queries = ROWS * warps * max(pitch, value_pitch) * 2
    stage = keys * (pitch + value_pitch) * 2
    return 2 * (queries + stage) if short else queries + stages * stage

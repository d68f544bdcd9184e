"""The entry points of a depthwise kernel, by costs/data/depthwise.json.

The library runs the first entry point that fits a call and is preferred for the result's width and the threads that it
has on a multiprocessor, else the first that fits (custom_ops/cuda/depthwise.cc). The last one fits every call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxopt.costs import depthwise as costs
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise import expanded
from onnxopt.kinds.depthwise.tiles import BANDED_CHANNELS, extent, seen, shared_bytes
from onnxopt.program.depthwise import MAX_HELD, Depthwise, DepthwiseVariant
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import WARP
from onnxopt.program.window import Window

_MAX_BANDED = 13  # the most inputs along an axis that an output of a banded entry point sees the first and last of
_NO_WIDTH = 2**31 - 1


def choose(name: str, meaning: Depthwise, regions: Sequence[Region], shapes: Shapes) -> tuple[DepthwiseVariant, ...]:
    """Variants in the order in which the host tries them, without those that no known width prefers."""
    if meaning.expansion is not None:
        stated = [_sizes(shapes.dims(region.outputs[0])) for region in regions]
        usual = [_sizes(shapes.usual(region.outputs[0])) for region in regions]
        return expanded.choose(name, meaning, list(dict.fromkeys([*usual, *stated])))
    sizes = [_sizes(shapes.dims(region.outputs[0])) for region in regions]
    is_row = meaning.window.kernel[0] == 1 and all(height == 1 for _, height, _ in sizes)
    widths = [width for *_, width in sizes]
    return tuple(v for v in every(name, meaning, is_row) if _may_run(v, meaning.channels, widths))


def every(name: str, meaning: Depthwise, is_row: bool = False) -> tuple[DepthwiseVariant, ...]:
    """Variants in the order in which the host tries them, for every width. is_row: results have a height of 1."""
    prologue = meaning.prologue is not None
    chosen = list(_table_variants(name, meaning.window, DTYPES[meaning.dtype].size, prologue))
    if meaning.gated:
        chosen = _of_halves(name, meaning.window, chosen)
    if is_row:
        chosen = _flat(name, chosen)
    if (
        DTYPES[meaning.outputs[0]].size != DTYPES[meaning.dtype].size
    ):  # a plane of shared memory holds inputs and results
        chosen = [v for v in chosen if v.layout != "banded"]
    last = _fallback(name, meaning.window)
    return (*chosen, *([last] if not chosen or chosen[-1].vector > 1 else []))


def _of_halves(name: str, window: Window, variants: Sequence[DepthwiseVariant]) -> list[DepthwiseVariant]:
    """Held tiles where a thread sums twice as many channels: of two columns at most where it had more, and of one
    channel where weights would fill the registers. Of equal tiles the last one says for which widths."""
    taps, tiles = window.kernel[0] * window.kernel[1], dict[str, DepthwiseVariant]()
    for variant in variants:
        if variant.layout == "held":
            vector = variant.vector if 2 * variant.vector * taps <= MAX_HELD else 1
            tile = held(name, vector, variant.down, min(variant.across, 2))
            tiles[tile.symbol] = dataclasses.replace(
                tile, narrowest=variant.narrowest, widest=variant.widest, fewest=variant.fewest
            )
    return list(tiles.values())


def _flat(name: str, variants: Sequence[DepthwiseVariant]) -> list[DepthwiseVariant]:
    """The tiles with their outputs side by side: in a map of height 1 none is outside then, and all share inputs.

    Tiles differ by width no longer, so of several of one vector only the first runs that asks for no number of threads.
    """
    flat: dict[str, DepthwiseVariant] = {}
    for variant in variants:
        if variant.layout == "banded" or any(v.vector == variant.vector and not v.fewest for v in flat.values()):
            continue
        if variant.layout == "held":
            tile = held(name, variant.vector, 1, min(variant.down * variant.across, costs.numbers().row_across))
            variant = flat.get(tile.symbol, dataclasses.replace(tile, fewest=variant.fewest))
        flat[variant.symbol] = variant
    return list(flat.values())


def others(name: str, meaning: Depthwise) -> Iterator[DepthwiseVariant]:
    """Further variants for `tune` to measure; no width prefers them."""
    if meaning.gated:
        return
    if meaning.expansion is not None:
        yield from (dataclasses.replace(v, narrowest=_NO_WIDTH) for v in expanded.others(name, meaning))
        return
    size, taps = DTYPES[meaning.dtype].size, meaning.window.kernel[0] * meaning.window.kernel[1]
    if taps > MAX_HELD and max(extent(meaning.window)) > _MAX_BANDED:
        return
    rule = {v.symbol for v in every(name, meaning)}
    for variant in _distinct(_variants(name, meaning.window, size, costs.numbers().others[size])):
        banded_fits = meaning.outputs == (meaning.dtype,) and max(extent(meaning.window)) <= _MAX_BANDED
        fits = banded_fits if variant.layout == "banded" else variant.vector * taps <= 2 * MAX_HELD
        if meaning.channels % variant.vector == 0 and fits and variant.symbol not in rule:
            yield dataclasses.replace(variant, narrowest=_NO_WIDTH)


def prologue_microseconds(meaning: Depthwise, cost: int, outputs: int, width: int | None) -> float:
    """Predicted time of a program of `cost` float32 instructions in front of a convolution with `outputs` elements."""
    variants = _table_variants("", meaning.window, DTYPES[meaning.dtype].size, prologue=True)
    usual = [v for v in variants if meaning.channels % v.vector == 0 and (width is None or _prefers(v, width))]
    variant = usual[0] if usual else _fallback("", meaning.window)
    if variant.layout == "banded":
        rows, columns = variant.down * 16 // variant.across // variant.images, 8 * variant.across
        key = "banded"
    else:
        rows, columns = variant.down, variant.across
        key = "held" if max(extent(meaning.window)) <= costs.numbers().simple_extent else "held_above_3"
    height, across = seen(meaning.window, rows, columns)
    return costs.numbers().microseconds_of_loads(outputs * height * across / (rows * columns), cost, key)


def microseconds_of_pass(moved: int) -> float:
    """Predicted time of a kernel of its own that moves this many bytes."""
    return costs.numbers().microseconds_of_pass(moved)


def _table_variants(name: str, window: Window, size: int, prologue: bool) -> Iterator[DepthwiseVariant]:
    reach = max(extent(window))
    for row in costs.numbers().prefers:
        strided, limit = row.get("strided", False), row.get("extent")
        if row["bytes"] != size or strided != (max(window.strides) > 1) or (limit is not None and reach > limit):
            continue
        if row.get("prologue", prologue) != prologue:
            continue
        yield from _distinct(_variants(name, window, size, row["choice"]))
        return
    raise ValueError(f"costs/data/depthwise.json has no row for {size} bytes and {window}")


def _distinct(variants: Iterator[DepthwiseVariant]) -> Iterator[DepthwiseVariant]:
    """The variants with distinct symbols: a tile may be preferred for some widths and be a later choice for others."""
    by_symbol: dict[str, DepthwiseVariant] = {}
    for variant in variants:
        before = by_symbol.get(variant.symbol)
        if before is not None and (before.narrowest, before.widest) == (variant.narrowest, variant.widest):
            continue
        symbol = variant.symbol if before is None else f"{variant.symbol}_from{variant.narrowest}"
        by_symbol[symbol] = dataclasses.replace(variant, symbol=symbol)
        yield by_symbol[symbol]


def _variants(name: str, window: Window, size: int, choice: Sequence[Mapping[str, Any]]) -> Iterator[DepthwiseVariant]:
    for row in choice:
        narrowest, widest = row.get("between", (1, None))
        if "banded" in row:
            variant = banded(name, window, *row["banded"])
        elif window.kernel[0] * window.kernel[1] <= MAX_HELD:
            variant = held(name, *row["held"])
        else:
            yield walking(name, *costs.numbers().walking[size])
            continue
        yield dataclasses.replace(variant, narrowest=narrowest, widest=widest or 0, fewest=row.get("fewest", 0))


def _fallback(name: str, window: Window) -> DepthwiseVariant:
    if window.kernel[0] * window.kernel[1] <= MAX_HELD:
        return held(name, 1, 2, 4)
    return walking(name, 1, 4)


def held(name: str, vector: int, down: int, across: int) -> DepthwiseVariant:
    """One entry point that holds the weights of `vector` channels in registers."""
    symbol = f"{name}_held_v{vector}d{down}a{across}"
    return DepthwiseVariant(
        symbol, "", 32, vector, 1, costs.numbers().threads, waits=True, layout="held", down=down, across=across
    )


def walking(name: str, vector: int, across: int) -> DepthwiseVariant:
    """One entry point that walks over the rows of the window."""
    symbol = f"{name}_walking_v{vector}a{across}"
    return DepthwiseVariant(
        symbol, "", 32, vector, 1, costs.numbers().threads, waits=True, layout="walking", down=1, across=across
    )


def banded(
    name: str, window: Window, across: int, down: int, chunks: int, warps: int, images: int, pieces: int
) -> DepthwiseVariant:  # fmt: skip
    """One entry point on tensor cores."""
    symbol = f"{name}_banded_a{across}d{down}c{chunks}w{warps}i{images}p{pieces}"
    variant = DepthwiseVariant(
        symbol, "", 32, BANDED_CHANNELS, 1, WARP * warps, waits=True, layout="banded", down=down, across=across,
        chunks=chunks, warps=warps, images=images, pieces=pieces,
    )  # fmt: skip
    return dataclasses.replace(variant, shared=shared_bytes(window, variant))


def _sizes(dims: Sequence[int | str | None] | None) -> tuple[int | None, int | None, int | None]:
    """N, height and width of a result, as far as they are numbers."""
    static = [d if isinstance(d, int) else None for d in dims or ()]
    return (static[0], static[1], static[2]) if len(static) == 4 else (None, None, None)


def _prefers(variant: DepthwiseVariant, width: int) -> bool:
    return variant.narrowest <= width and (variant.widest == 0 or width <= variant.widest)


def _may_run(variant: DepthwiseVariant, channels: int, widths: Sequence[int | None]) -> bool:
    return channels % variant.vector == 0 and any(w is None or _prefers(variant, w) for w in widths)

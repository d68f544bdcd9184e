"""The entry points of an image convolution. One tile serves all shapes of a window; `tune` measures others.

Of float32 there are two for each tile: the library runs the one with TF32 where the CUDA provider's option use_tf32
allows it. Where blocks need more shared memory than every GPU has, further ones with fewer filters follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from onnxopt.costs.image_convolution import numbers
from onnxopt.kinds.image_convolution.tiles import shared_bytes
from onnxopt.program.hardware import WARP
from onnxopt.program.image_convolution import FILTERS, ImageConvolution, ImageConvolutionVariant

_MAX_SHARED = 64 << 10  # bytes that a block can have on every GPU
_MAX_SHARED_OF_FLOAT32 = 96 << 10  # on every GPU that has TF32
_COSTS = numbers()


def choose(name: str, meaning: ImageConvolution) -> tuple[ImageConvolutionVariant, ...]:
    """One tile, which every GPU's shared memory holds; of float32 with TF32 and exact."""
    if meaning.dtype != "float32":
        return (variant(name, meaning, *_tile(meaning)),)
    tiles = [_many_filters(name, meaning, limit) for limit in (_MAX_SHARED_OF_FLOAT32, _MAX_SHARED)]
    return tuple(dict.fromkeys(variant for tile in tiles for variant in _both(tile)))


def _many_filters(name: str, meaning: ImageConvolution, limit: int) -> ImageConvolutionVariant:
    """The first tile whose blocks compute many filters, or all, within so much shared memory; else the smallest."""
    variants = [variant(name, meaning, *tile, limit) for tile in (_tile(meaning), _COSTS.tile, *_COSTS.smaller)]
    return next((v for v in variants if v.filters >= min(_COSTS.many_filters, meaning.filters)), variants[-1])


def others(name: str, meaning: ImageConvolution) -> Iterator[ImageConvolutionVariant]:
    """Further tiles, for `tune`."""
    limit = _MAX_SHARED_OF_FLOAT32 if meaning.dtype == "float32" else _MAX_SHARED
    for tile in _COSTS.others:
        other = variant(name, meaning, *tile, limit)
        if tile != _tile(meaning) and other.shared <= limit:
            yield from _both(other) if meaning.dtype == "float32" else (other,)


def _both(variant: ImageConvolutionVariant) -> tuple[ImageConvolutionVariant, ImageConvolutionVariant]:
    """An entry point with TF32, and the same without its rounding."""
    return variant, dataclasses.replace(variant, symbol=f"{variant.symbol}x", exact=True)


def _tile(meaning: ImageConvolution) -> tuple[int, int, int]:
    rows, columns = meaning.window.kernel
    return _COSTS.tile_of(rows * columns)


def variant(
    name: str, meaning: ImageConvolution, products: int, warps: int, across: int, limit: int = _MAX_SHARED
) -> ImageConvolutionVariant:
    """The entry point with the most filters a block that shared memory holds, 8 if it holds none."""

    def of(filters: int) -> ImageConvolutionVariant:
        symbol = f"{name}_p{products}w{warps}a{across}f{filters}"
        result = ImageConvolutionVariant(
            symbol, "", 32, FILTERS, 1, WARP * warps, waits=True, products=products, across=across, filters=filters
        )
        return dataclasses.replace(result, shared=shared_bytes(meaning.window, result, meaning.dtype))

    counts = (f for f in range(_COSTS.max_filters, 0, -FILTERS) if meaning.filters % f == 0)
    return next((result for f in counts if (result := of(f)).shared <= limit), of(FILTERS))

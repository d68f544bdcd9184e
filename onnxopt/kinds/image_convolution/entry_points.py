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

_MOST_SHARED = 64 << 10  # bytes that a block can have on every GPU
_MOST_SHARED_OF_FLOAT32 = 96 << 10  # on every GPU that has TF32
_COSTS = numbers()


def choose(name: str, meaning: ImageConvolution) -> tuple[ImageConvolutionVariant, ...]:
    """One tile, which every GPU's shared memory holds; of float32 with TF32 and exact."""
    if meaning.dtype != "float32":
        return (variant(name, meaning, *_tile(meaning)),)
    tiles = [_of_many_filters(name, meaning, most) for most in (_MOST_SHARED_OF_FLOAT32, _MOST_SHARED)]
    return tuple(dict.fromkeys(made for tile in tiles for made in _both(tile)))


def _of_many_filters(name: str, meaning: ImageConvolution, most: int) -> ImageConvolutionVariant:
    """The first tile whose blocks compute many filters, or all, within so much shared memory; else the smallest."""
    made = [variant(name, meaning, *tile, most) for tile in (_tile(meaning), _COSTS.tile, *_COSTS.smaller)]
    return next((v for v in made if v.filters >= min(_COSTS.many_filters, meaning.filters)), made[-1])


def others(name: str, meaning: ImageConvolution) -> Iterator[ImageConvolutionVariant]:
    """Further tiles, for `tune`."""
    most = _MOST_SHARED_OF_FLOAT32 if meaning.dtype == "float32" else _MOST_SHARED
    for tile in _COSTS.others:
        made = variant(name, meaning, *tile, most)
        if tile != _tile(meaning) and made.shared <= most:
            yield from _both(made) if meaning.dtype == "float32" else (made,)


def _both(variant: ImageConvolutionVariant) -> tuple[ImageConvolutionVariant, ImageConvolutionVariant]:
    """An entry point with TF32, and the same without its rounding."""
    return variant, dataclasses.replace(variant, symbol=f"{variant.symbol}x", exact=True)


def _tile(meaning: ImageConvolution) -> tuple[int, int, int]:
    rows, columns = meaning.window.kernel
    return _COSTS.tile_of(rows * columns)


def variant(
    name: str, meaning: ImageConvolution, products: int, warps: int, across: int, most: int = _MOST_SHARED
) -> ImageConvolutionVariant:
    """The entry point with the most filters a block that shared memory holds, 8 if it holds none."""

    def of(filters: int) -> ImageConvolutionVariant:
        symbol = f"{name}_p{products}w{warps}a{across}f{filters}"
        made = ImageConvolutionVariant(
            symbol, "", 32, FILTERS, 1, WARP * warps, waits=True, products=products, across=across, filters=filters
        )
        return dataclasses.replace(made, shared=shared_bytes(meaning.window, made, meaning.dtype))

    counts = (f for f in range(_COSTS.max_filters, 0, -FILTERS) if meaning.filters % f == 0)
    return next((made for f in counts if (made := of(f)).shared <= most), of(FILTERS))

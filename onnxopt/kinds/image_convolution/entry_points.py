"""The entry points of an image convolution. One tile serves all shapes of a window; `tune` measures others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from onnxopt.kinds.image_convolution.tiles import ImageVariant, shared_bytes
from onnxopt.program.hardware import WARP
from onnxopt.program.image_convolution import FILTERS, ImageConvolution

_MOST_SHARED = 64 << 10  # bytes that a block can have on every GPU
_MOST_FILTERS = 64  # of a block: the sums of two products are 64 registers then
# Products of a warp, warps, outputs along a row. Measured on one H200 (benchmarks.gpu.image_convolutions --sweep), us:
# 7x7 at 32x224x224 36.5 with 4 warps, 34.4 with 8, at 1x224x224 6.6 and 4.6; 3x3 at 8x640x640 29.5 and 31.5.
_TILE, _TILE_OF_LARGE = (2, 4, 16), (2, 8, 16)
_LARGE = 25  # rows times columns of a window
_OTHERS = (_TILE, _TILE_OF_LARGE, (4, 4, 16), (1, 8, 16), (1, 4, 16), (2, 4, 32), (2, 8, 32), (2, 4, 8))


def choose(name: str, meaning: ImageConvolution) -> tuple[ImageVariant, ...]:
    """One tile, which every GPU's shared memory holds."""
    return (variant(name, meaning, *_tile(meaning)),)


def others(name: str, meaning: ImageConvolution) -> Iterator[ImageVariant]:
    """Further tiles, for `tune`."""
    for tile in _OTHERS:
        made = variant(name, meaning, *tile)
        if tile != _tile(meaning) and made.shared <= _MOST_SHARED:
            yield made


def _tile(meaning: ImageConvolution) -> tuple[int, int, int]:
    rows, columns = meaning.window.kernel
    return _TILE_OF_LARGE if rows * columns >= _LARGE else _TILE


def variant(name: str, meaning: ImageConvolution, products: int, warps: int, across: int) -> ImageVariant:
    """The entry point with the most filters a block that shared memory holds, 8 if it holds none."""

    def of(filters: int) -> ImageVariant:
        symbol = f"{name}_p{products}w{warps}a{across}f{filters}"
        made = ImageVariant(
            symbol, "", 32, FILTERS, 1, WARP * warps, waits=True, products=products, across=across, filters=filters
        )
        return dataclasses.replace(made, shared=shared_bytes(meaning.window, made))

    counts = (f for f in range(_MOST_FILTERS, 0, -FILTERS) if meaning.filters % f == 0)
    return next((made for f in counts if (made := of(f)).shared <= _MOST_SHARED), of(FILTERS))

"""How a block of an image convolution divides its work, and the shared memory that this takes.

The numbers are those of cuda_kernels/image_convolution/tile.cuh; the generated source asserts that both are equal.
"""

from __future__ import annotations

import dataclasses

from onnxopt.fusion.kernel import Variant
from onnxopt.program.hardware import WARP
from onnxopt.program.image_convolution import FILTERS
from onnxopt.program.window import Window

PIXEL_BYTES, FLOAT32_PIXEL_BYTES = 8, 16
PRODUCT_ROWS = 16


@dataclasses.dataclass(frozen=True)
class ImageVariant(Variant):
    """One entry point: a block has threads / 32 warps, each of `products` products of 16 outputs; the outputs are
    `across` neighbours in each of some rows, and `filters` filters. shared: bytes of shared memory per block. exact: of
    float32, whether products keep what TF32 rounds off."""

    products: int = 1
    across: int = 16
    filters: int = FILTERS
    shared: int = 0
    exact: bool = False

    @property
    def down(self) -> int:
        """Rows of a block's outputs."""
        return PRODUCT_ROWS * self.products * (self.threads // WARP) // self.across


def shared_bytes(window: Window, variant: ImageVariant, dtype: str) -> int:
    """Bytes of shared memory of a block: weights, what sums begin with, and the inputs."""
    return _of_float32(window, variant) if dtype == "float32" else _of_16_bits(window, variant)


def _of_16_bits(window: Window, variant: ImageVariant) -> int:
    """The inputs lie there twice for odd strides."""
    pairs = (window.kernel[1] + 1) // 2
    steps = (window.kernel[0] * pairs + 1) // 2
    tile_pairs = (variant.filters // 8 + 1) // 2
    rows = (variant.down - 1) * window.strides[0] + window.kernel[0]
    columns = ((variant.across - 1) * window.strides[1] + 2 * pairs + 1) // 2 * 2
    copy = (rows * columns * PIXEL_BYTES + 63) // 128 * 128 + 64
    return steps * tile_pairs * WARP * 16 + variant.filters * 4 + copy * (1 + window.strides[1] % 2)


def _of_float32(window: Window, variant: ImageVariant) -> int:
    steps = (window.kernel[0] * window.kernel[1] + 1) // 2
    tile_pairs = (variant.filters // 8 + 1) // 2
    rows = (variant.down - 1) * window.strides[0] + window.kernel[0]
    columns = (variant.across - 1) * window.strides[1] + window.kernel[1]
    row = -(-columns // window.strides[1]) * window.strides[1] * FLOAT32_PIXEL_BYTES
    return steps * tile_pairs * WARP * 16 + variant.filters * 4 + rows * row

"""How a block of an image convolution divides its work, and the shared memory that this takes.

The numbers are those of cuda_kernels/image_convolution/tile.cuh; the generated source asserts that both are equal.
"""

from __future__ import annotations

from onnxopt.program.hardware import WARP
from onnxopt.program.image_convolution import ImageConvolutionVariant
from onnxopt.program.window import Window

PIXEL_BYTES, FLOAT32_PIXEL_BYTES = 8, 16


def shared_bytes(window: Window, variant: ImageConvolutionVariant, dtype: str) -> int:
    """Bytes of shared memory of a block: weights, what sums begin with, and the inputs."""
    return _tile_of_float32(window, variant) if dtype == "float32" else _tile_of_16_bits(window, variant)


def _tile_of_16_bits(window: Window, variant: ImageConvolutionVariant) -> int:
    """The inputs lie there twice for odd strides."""
    pairs = (window.kernel[1] + 1) // 2
    steps = (window.kernel[0] * pairs + 1) // 2
    tile_pairs = (variant.filters // 8 + 1) // 2
    rows = (variant.down - 1) * window.strides[0] + window.kernel[0]
    columns = ((variant.across - 1) * window.strides[1] + 2 * pairs + 1) // 2 * 2
    copy = (rows * columns * PIXEL_BYTES + 63) // 128 * 128 + 64
    return steps * tile_pairs * WARP * 16 + variant.filters * 4 + copy * (1 + window.strides[1] % 2)


def _tile_of_float32(window: Window, variant: ImageConvolutionVariant) -> int:
    steps = (window.kernel[0] * window.kernel[1] + 1) // 2
    tile_pairs = (variant.filters // 8 + 1) // 2
    rows = (variant.down - 1) * window.strides[0] + window.kernel[0]
    columns = (variant.across - 1) * window.strides[1] + window.kernel[1]
    row = -(-columns // window.strides[1]) * window.strides[1] * FLOAT32_PIXEL_BYTES
    return steps * tile_pairs * WARP * 16 + variant.filters * 4 + rows * row

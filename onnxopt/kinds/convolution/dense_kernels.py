"""Entry points for convolutions of few channels, and their CUDA source, on top of cuda_kernels/dense_convolution/.

A block keeps the weights of all filters in shared memory, and brings what a tile of the result sees there once for all
taps. cuDNN's kernels read it again for each tap, and are slower for few channels.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from onnxopt.costs.convolution import numbers
from onnxopt.program.block import BlockStep, BlockVariant
from onnxopt.program.convolution import Convolution, DenseConvolutionVariant, DenseTile
from onnxopt.program.cuda_text.cores import static_window
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import WARP
from onnxopt.program.schema import Variant
from onnxopt.program.window import Window

HEADER = "dense_convolution/dense_convolution.cuh"
_PRODUCT = 16  # channels, filters and outputs of a product
_CHUNK = 16  # bytes, of which rows of shared memory are an odd number
_DTYPES = ("float16", "bfloat16")
_DIGITS = 8
_COSTS = numbers()


@dataclasses.dataclass(frozen=True)
class DenseSteps:
    """What a kernel computes apart from its channels and pads. bias, residual: whether it adds one."""

    window: Window
    dtype: str
    bias: bool
    residual: bool
    residual_last: bool
    activation: str


def steps_of(operation: Convolution | BlockStep, dtype: str) -> DenseSteps | None:
    """The steps of a convolution of floats; None where no kernel has such."""
    window = operation.window
    if operation.group > 1 or operation.transposed or window.depth is not None:
        return None
    plain = dataclasses.replace(window, pads=(0, 0, 0, 0), auto_pad="NOTSET")
    bias, residual = operation.bias is not None, operation.residual is not None
    return DenseSteps(plain, dtype, bias, residual, operation.residual_last, operation.activation)


def takes(window: Window, dtype: str, channels: tuple[int, int], activation: str) -> bool:
    """Whether a convolution with one group has entry points. channels: C and K."""
    return dtype in _DTYPES and window.depth is None and bool(_tiles(window, channels, activation))


def tiles(steps: DenseSteps, channels: Iterable[tuple[int, int]]) -> list[tuple[DenseTile, int]]:
    """All tiles for these numbers of channels and filters, and their warps."""
    pairs = [pair for pair in sorted(set(channels)) if takes(steps.window, steps.dtype, pair, steps.activation)]
    return [tile for pair in pairs for tile in _tiles(steps.window, pair, steps.activation)]


def entry_points(steps: DenseSteps, channels: Iterable[tuple[int, int]]) -> tuple[DenseConvolutionVariant, ...]:
    """One for each tile."""
    own = tiles(steps, channels)
    name = name_of("Dense", (steps, own))
    return tuple(
        DenseConvolutionVariant(
            symbol(name, tile, warps), "", 32, 8, 1, WARP * warps, waits=True, tile=tile,
            shared=shared_bytes(steps.window, tile, warps),
        )
        for tile, warps in own
    )  # fmt: skip


def name_of(first: str, *parts: tuple[DenseSteps, Iterable[tuple[DenseTile, int]]]) -> str:
    """The same for kernels of the same steps and tiles."""
    text = "\n".join(line for steps, own in parts for line in (*_struct(steps), *map(repr, own)))
    return f"{first}_{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _tiles(window: Window, channels: tuple[int, int], activation: str) -> Sequence[tuple[DenseTile, int]]:
    """Tiles, and their warps, for so many channels and filters; none where cuDNN is faster."""
    c, k = channels
    if c % _PRODUCT or k % _PRODUCT or window.kernel != (3, 3) or window.dilations != (1, 1):
        return ()
    row = next((row for row in _COSTS.dense if _fits(row, window, channels, activation)), None)
    if row is None:
        return ()
    sizes = {"channels": c, "filters": k, "pixels": row.get("pixels", 0)}
    return [
        (DenseTile(products=products, across=across, parts=parts, **sizes), warps)
        for products, warps, across, parts in row["tiles"]
    ]


def _fits(row: Mapping[str, Any], window: Window, channels: tuple[int, int], activation: str) -> bool:
    """Whether a row of the measured tiles is for such a convolution."""
    limits = zip((*channels, max(window.strides)), (row["channels"], row["filters"], row["stride"]), strict=True)
    return all(size <= limit for size, limit in limits) and activation in row.get("activations", (activation,))


def symbol(name: str, tile: DenseTile, warps: int) -> str:
    """The name of an entry point. name: of the struct with its steps."""
    return f"{name}_c{tile.channels}k{tile.filters}_p{tile.products}w{warps}a{tile.across}x{tile.parts}"


def shared_bytes(window: Window, tile: DenseTile, warps: int) -> int:
    """Bytes of shared memory of a block: the weights, and twice what a tile sees."""

    def pitch(elements: int) -> int:
        return (2 * elements // _CHUNK | 1) * _CHUNK

    down = _PRODUCT // tile.across * tile.products * warps // tile.parts
    sides = zip((down, tile.across), window.kernel, window.strides, window.dilations, strict=True)
    rows, columns = ((outputs - 1) * stride + (taps - 1) * dilation + 1 for outputs, taps, stride, dilation in sides)
    taps = window.kernel[0] * window.kernel[1]
    return tile.filters * pitch(taps * tile.channels) + 2 * rows * columns * pitch(tile.channels)


def lines(name: str, steps: DenseSteps, variants: Iterable[Variant]) -> list[str]:
    """What the kernel does with a sum as a struct of this name, and one entry point per variant."""
    entries = [
        line for variant in variants for line in _entry(name, cast(DenseConvolutionVariant | BlockVariant, variant))
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in _struct(steps)), "};", "", *entries]


def _struct(steps: DenseSteps) -> list[str]:
    flags = {
        "kBias": steps.bias, "kResidual": steps.residual, "kResidualLast": steps.residual_last,
    }  # fmt: skip
    activation = "".join(part.capitalize() for part in steps.activation.split("_"))
    return [
        f"using Window = {static_window(steps.window)};",
        f"using Stored = {DTYPES[steps.dtype].cuda};",
        *(f"static constexpr bool {name} = {str(holds).lower()};" for name, holds in flags.items()),
        f"static constexpr ConvolutionActivation kActivation = ConvolutionActivation::k{activation};",
    ]


def _entry(name: str, variant: DenseConvolutionVariant | BlockVariant) -> list[str]:
    tile = variant.tile
    warps = variant.threads // WARP
    sizes = f"{tile.channels}, {tile.filters}, {tile.products}, {warps}, {tile.across}, {tile.parts}"
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads})',
        f"{variant.symbol}(const __grid_constant__ DenseConvolutionParams p) {{",
        f"  using Tile = DenseTile<{name}::Window, {sizes}>;",
        f'  static_assert(Tile::kSharedBytes == {variant.shared}, "as the host was told");',
        f"  dense_convolution<{name}, Tile>(p);",
        "}",
        "",
    ]

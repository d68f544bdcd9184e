"""CUDA source of image convolutions, on top of cuda_kernels/image_convolution/."""

from __future__ import annotations

from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.program.cuda_text.cores import channel_reads, data, element_read, static_window
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import WARP
from onnxopt.program.image_convolution import ImageConvolution, ImageConvolutionVariant

HEADER = "image_convolution/image_convolution.cuh"
_PARAMS = "ImageConvolutionParams"


def lines(kernel: Kernel) -> list[str]:
    """The kernel's program as a struct, and one entry point per variant."""
    meaning = cast(ImageConvolution, kernel.program)
    entries = [
        line for v in kernel.variants for line in _entry(kernel.name, cast(ImageConvolutionVariant, v), meaning.dtype)
    ]
    return [*_struct(kernel.name, meaning), "", *entries]


def _struct(name: str, meaning: ImageConvolution) -> list[str]:
    body = [
        f"using Stored = {DTYPES[meaning.dtype].cuda};",
        f"using W = {static_window(meaning.window)};",
        f"static constexpr int kX = {meaning.x};",
        f"static constexpr int kWeight = {meaning.weight};",
        f"static constexpr int kChannels = {meaning.channels};",
        f"static constexpr bool kPlanes = {str(meaning.planes).lower()};",
        f"static constexpr int kWeightChannels = {meaning.weight_channels};",
        f"static constexpr int kFilters = {meaning.filters};",
        *_before(meaning),
        *_after(meaning),
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _before(meaning: ImageConvolution) -> list[str]:
    part = meaning.prologue
    if part is None:
        return []
    image = DTYPES[meaning.inputs[meaning.x]]
    value = "float" if image.compute == "float32" else image.cuda
    body = [
        f"using Image = {image.cuda};",
        *channel_reads([(f"x{k}", read) for k, read in enumerate(part.reads, 1)], [], meaning.inputs, _PARAMS),
        f"__device__ static float apply({value} x0, const Of& of) {{",
        *(f"  {line}" for line in element_read(part, image.name)),
        "}",
    ]
    return ["struct Before {", *(f"  {line}" for line in body), "};"]


def _after(meaning: ImageConvolution) -> list[str]:
    reads = [(f"x{k}", read) for k, read in enumerate(meaning.epilogue.reads, 1)]
    start = "0.0f" if meaning.bias is None else f"widen({data(meaning.inputs, meaning.bias)}[c])"
    body = [
        *channel_reads(reads, [("start", start)], meaning.inputs, _PARAMS),
        "__device__ static float apply(float x0, const Of& of) {",
        *(f"  {line}" for line in element_read(meaning.epilogue, meaning.dtype)),
        "}",
    ]
    return ["struct After {", *(f"  {line}" for line in body), "};"]


def _entry(name: str, variant: ImageConvolutionVariant, dtype: str) -> list[str]:
    tile, run = ("ImageTile", f"ImageProducts<{name}, Tile>")
    if dtype == "float32":
        tile, run = "Float32ImageTile", f"ImageProductsOfFloat32<{name}, Tile, {str(variant.exact).lower()}>"
    size = f"{variant.products}, {variant.threads // WARP}, {variant.across}, {variant.filters}"
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads})',
        f"{variant.symbol}(const __grid_constant__ {_PARAMS} p) {{",
        f"  using Tile = {tile}<{name}::W, {size}>;",
        f'  static_assert(Tile::kSharedBytes == {variant.shared}, "as the host was told");',
        f"  {run}::run(p);",
        "}",
        "",
    ]

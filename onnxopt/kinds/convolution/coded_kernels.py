"""Entry points for convolutions from codes to codes, and their CUDA source, on top of cuda_kernels/coded_convolution/.

They run uint8 x, which cuDNN has no kernel for. Of int8, where channels are few, moving the codes takes longer than
multiplying them, and cuDNN's kernels take longer still: the library runs an entry point where
costs/data/convolution.json says so, and cuDNN else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from onnxopt.costs.convolution import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.convolution import CodedConvolutionVariant, CodeScale, Convolution, ConvolutionCodes
from onnxopt.program.cuda_text.cores import static_window
from onnxopt.program.dtypes import DTYPES

HEADER = "coded_convolution/coded_convolution.cuh"
_STAGES = {64: 3, 128: 4}  # by columns of a tile; the first fits the shared memory of every GPU
_ROWS, _DEPTH, _THREADS = 128, 64, 256  # as coded_convolution.cuh has them
_FIRST = {"int8": -128, "uint8": 0}


def choose(
    name: str, meaning: Convolution, regions: Sequence[Region], shapes: Shapes
) -> tuple[CodedConvolutionVariant, ...]:
    """Those for the filters and channels of the regions; none where cuDNN runs all."""
    if not meaning.has_own_kernel:
        return ()
    sides = [shapes.dims(region.inputs[meaning.w]) or (0, 0) for region in regions]
    widths = {_width(filters) for filters, *_, channels in sides if _runs(meaning, channels)}
    if meaning.inputs[meaning.x] == "uint8":
        widths.add(min(_STAGES))  # what every GPU has room for
    return tuple(variant(name, width) for width in sorted(widths))


def variant(name: str, columns: int) -> CodedConvolutionVariant:
    """The entry point of tiles of so many filters."""
    shared = _STAGES[columns] * (_ROWS + columns) * _DEPTH + _THREADS // 32 * 16 * (columns // 2 + 4) * 4
    symbol = f"{name}_columns{columns}"
    return CodedConvolutionVariant(symbol, "", 32, 16, 1, _THREADS, waits=True, columns=columns, shared=shared)


def _runs(meaning: Convolution, channels: object) -> bool:
    """Whether an entry point runs so many channels, not cuDNN."""
    costs = numbers()
    most = costs.own_product_depth if meaning.window.kernel == (1, 1) else costs.own_window_channels
    return meaning.inputs[meaning.x] == "uint8" or (isinstance(channels, int) and channels <= most)


def _width(filters: object) -> int:
    narrow, wide = sorted(_STAGES)
    return narrow if isinstance(filters, int) and filters <= narrow else wide


def lines(kernel: Kernel) -> list[str]:
    """What the kernel makes of a sum as a struct, and one entry point per variant."""
    if not kernel.variants:
        return []
    entries = [line for v in kernel.variants for line in _entry(kernel.name, cast(CodedConvolutionVariant, v))]
    return [*_struct(kernel.name, cast(Convolution, kernel.program)), "", *entries]


def _struct(name: str, meaning: Convolution) -> list[str]:
    def stored(at: int | None) -> str:
        return "float" if at is None else DTYPES[meaning.inputs[at]].cuda

    body = [
        f"using Window = {static_window(meaning.window)};",
        f"using Scale = {stored(meaning.scale)};",
        f"using Bias = {stored(meaning.bias)};",
        f"using Residual = {stored(meaning.residual)};",
        f"using Stored = {DTYPES[meaning.outputs[0]].cuda};",
        *(
            f"static constexpr bool {flag} = {str(at is not None).lower()};"
            for flag, at in (("kScales", meaning.scale), ("kBias", meaning.bias), ("kResidual", meaning.residual))
        ),
        f"static constexpr bool kUnsigned = {str(meaning.inputs[meaning.x] == 'uint8').lower()};",
        f"static constexpr bool kIsProduct = {str(meaning.window.is_pointwise).lower()};",
        "__device__ static float code(float sum, float scale, float bias, float residual) {",
        *(f"  {line}" for line in _code(meaning)),
        "}",
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _code(meaning: Convolution) -> list[str]:
    """The steps from a sum to a code, as graph.cc gives them to cuDNN."""
    codes = cast(ConvolutionCodes, meaning.codes)
    of_sums = meaning.bias is not None and meaning.inputs[meaning.bias] == "int32"
    scale = f"scale * {_float(codes.scale)}" if meaning.scale is not None else _float(codes.scale)
    text = [f"float v = {'(sum + bias)' if of_sums else 'sum'} * ({scale});"]
    if meaning.bias is not None and not of_sums:
        text.append("v += bias;")
    activation = _activation(meaning)
    if meaning.residual_last:
        text += activation
    if codes.rounded is not None:
        text.append(f"v = {_rounded(codes.rounded, codes.rounded_dtype)} * {_float(codes.rounded.scale)};")
    if meaning.residual is not None:
        of = codes.residual
        text.append("v += residual;" if of is None else f"v += (residual - {_float(of.zero)}) * {_float(of.scale)};")
    if not meaning.residual_last:
        text += activation
    result = cast(CodeScale, codes.result)
    return [*text, f"return {_rounded(result, meaning.outputs[0])} + {_float(result.zero)};"]


def _activation(meaning: Convolution) -> list[str]:
    if meaning.activation == "clip":
        return [f"v = fminf(fmaxf(v, 0.0f), {_float(meaning.activation_value)});"]
    return ["v = fmaxf(v, 0.0f);"] if meaning.activation == "relu" else []


def _rounded(scale: CodeScale, dtype: str) -> str:
    """v as a code minus the zero point."""
    low = _FIRST[dtype] - scale.zero
    return f"whole(v * {_float(float(1 / np.float32(scale.scale)))}, {_float(low)}, {_float(low + 255)})"


def _float(number: float) -> str:
    text = str(np.float32(number))
    return f"{text if any(c in text for c in '.e') else f'{text}.0'}f"


def _entry(name: str, variant: CodedConvolutionVariant) -> list[str]:
    of = f"<{name}, {variant.columns}, {_STAGES[variant.columns]}>"
    return [
        f'extern "C" __global__ void __launch_bounds__({_THREADS}, 2)',
        f"{variant.symbol}(const __grid_constant__ CodedConvolutionParams p) {{",
        f'  static_assert(CodedConvolution{of}::kSharedBytes == {variant.shared}, "as the host was told");',
        f"  coded_convolution{of}(p);",
        "}",
        "",
    ]

"""Entry points for convolutions from codes to codes, and their CUDA source, on top of cuda_kernels/coded_convolution/.

They run uint8 x, and x with a zero point, which cuDNN has no kernels for; those that it has for int8 are faster.
"""

from __future__ import annotations

import hashlib
from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.program.convolution import CodedConvolutionVariant, Convolution, ConvolutionCodes
from onnxopt.program.cuda_text.cores import static_window
from onnxopt.program.dtypes import DTYPES

HEADER = "coded_convolution/coded_convolution.cuh"
_STAGES = {64: 3, 128: 4}  # by columns of a tile; the first fits the shared memory of every GPU
_ROWS, _DEPTH, _THREADS = 128, 64, 256  # as coded_convolution.cuh has them
_DIGITS = 8


def choose(meaning: Convolution) -> tuple[CodedConvolutionVariant, ...]:
    """All tiles, where cuDNN has no kernel for the codes.

    Kernels of the same steps have the same entry points: scales are numbers that a launch passes.
    """
    return entry_points(meaning) if meaning.has_own_kernel and meaning.needs_own_kernel else ()


def entry_points(meaning: Convolution) -> tuple[CodedConvolutionVariant, ...]:
    """One for each width of tiles."""
    name = _name(meaning)
    return tuple(_variant(f"{name}_columns{columns}", columns) for columns in _STAGES)


def _variant(symbol: str, columns: int) -> CodedConvolutionVariant:
    shared = _STAGES[columns] * (_ROWS + columns) * _DEPTH + _THREADS // 32 * 16 * (columns // 2 + 4) * 4
    return CodedConvolutionVariant(symbol, "", 32, 16, 1, _THREADS, waits=True, columns=columns, shared=shared)


def lines(kernel: Kernel) -> list[str]:
    """What the kernel makes of a sum as a struct, and one entry point per variant."""
    if not kernel.variants:
        return []
    meaning = cast(Convolution, kernel.program)
    name = _name(meaning)
    entries = [line for v in kernel.variants for line in _entry(name, cast(CodedConvolutionVariant, v))]
    return [f"struct {name} {{", *(f"  {line}" for line in _steps(meaning)), "};", "", *entries]


def _name(meaning: Convolution) -> str:
    """The same for kernels of the same steps."""
    return f"Coded_{hashlib.sha256(chr(10).join(_steps(meaning)).encode()).hexdigest()[:_DIGITS]}"


def _steps(meaning: Convolution) -> list[str]:
    codes = cast(ConvolutionCodes, meaning.codes)

    def stored(at: int | None) -> str:
        return "float" if at is None else DTYPES[meaning.inputs[at]].cuda

    flags = {
        "kUnsigned": meaning.inputs[meaning.x] == "uint8", "kZero": codes.zero != 0,
        "kIsProduct": meaning.window.is_pointwise,
        "kScales": meaning.scale is not None, "kBias": meaning.bias is not None,
        "kResidual": meaning.residual is not None, "kResidualLast": meaning.residual_last,
        "kRounded": codes.rounded is not None, "kActivates": meaning.activation != "none",
        "kBounded": meaning.activation == "clip",
    }  # fmt: skip
    return [
        f"using Window = {static_window(meaning.window)};",
        f"using Scale = {stored(meaning.scale)};",
        f"using Bias = {stored(meaning.bias)};",
        f"using Residual = {stored(meaning.residual)};",
        f"using Stored = {DTYPES[meaning.outputs[0]].cuda};",
        *(f"static constexpr bool {name} = {str(holds).lower()};" for name, holds in flags.items()),
    ]


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

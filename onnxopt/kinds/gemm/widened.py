"""The entry point of a product of 8-bit floats that widens codes to float16 (cuda_kernels/gemm/widen_codes.cuh).

cuBLASLt multiplies the codes themselves from compute capability 8.9 on. Elsewhere, and where it refuses a shape, the
library widens both operands into scratch memory and runs the product on those.
"""

from __future__ import annotations

from onnxopt.costs.gemm import numbers
from onnxopt.fusion.region import Kernel
from onnxopt.program.gemm import WidenVariant
from onnxopt.program.schema import Variant

HEADER, HEADER_OF_PRODUCTS = "gemm/gemm.cuh", "gemm/all_products.cuh"  # the second has few rows of 16-bit floats too
FIRST_ARCH = 89  # whose tensor cores multiply 8-bit floats
_CODES = 8  # kWidenedCodes of widen_codes_abi.h
_THREADS = numbers().widen_threads


def entry_points(name: str) -> tuple[Variant, ...]:
    """The one entry point."""
    return (WidenVariant(f"{name}_widen", "", 64, _CODES, 1, _THREADS, waits=True),)


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry point, which is the kernel's first."""
    text: list[str] = []
    for v in kernel.variants[:1]:
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ WidenCodesParams params) {{",
            f"  widen_codes<{v.threads}>(params);",
            "}",
            "",
        ]
    return text

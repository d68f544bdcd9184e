"""The entry points of a squeeze-excite, and their CUDA text on top of cuda_kernels/squeeze_excite/.

The first two run the products: one row of means a block while all blocks run at once, else several rows that share the
weights. For a map of a depthwise convolution follow the one that adds the sums of many tiles, and those of the
convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onnxopt.costs.squeeze_excite import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise import cuda as depthwise_cuda
from onnxopt.kinds.depthwise import entry_points as depthwise
from onnxopt.program.cuda_text.cores import function_body
from onnxopt.program.depthwise import DepthwiseVariant
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.schema import Variant
from onnxopt.program.squeeze_excite import FactorsVariant, SqueezeExcite, SqueezeExciteLayer

HEADER = "squeeze_excite/squeeze_excite.cuh"
HEADER_WITH_MAP = "squeeze_excite/behind_depthwise.cuh"
_ROWS, _THREADS = numbers().rows, numbers().threads


def choose(name: str, meaning: SqueezeExcite, regions: Sequence[Region], shapes: Shapes) -> tuple[Variant, ...]:
    """Those of the products, then those of the depthwise convolution."""
    products = [FactorsVariant(f"{name}_rows{rows}", "", 32, 1, rows, _THREADS, waits=True) for rows in _ROWS]
    if meaning.depthwise is None:
        return tuple(products)
    fold = FactorsVariant(f"{name}_fold", "", 32, 1, 1, _THREADS, waits=True)
    return (*products, fold, *depthwise.choose(f"{name}_map", meaning.depthwise, regions, shapes))


def alternatives(kernel: Kernel) -> list[Variant]:
    """Further entry points of the depthwise convolution for `tune` to measure."""
    map_meaning = cast(SqueezeExcite, kernel.program).depthwise
    symbols = {variant.symbol for variant in kernel.variants}
    others = depthwise.others(f"{kernel.name}_map", map_meaning) if map_meaning is not None else ()
    return [variant for variant in others if variant.symbol not in symbols]


def lines(kernel: Kernel) -> list[str]:
    """The programs as a struct, one for the depthwise convolution, and one entry point per variant."""
    meaning = cast(SqueezeExcite, kernel.program)
    text = _struct(kernel.name, meaning)
    for variant in (v for v in kernel.variants if not isinstance(v, DepthwiseVariant)):
        step = "fold" if variant.symbol.endswith("_fold") else "run"
        text += [
            f'extern "C" __global__ void __launch_bounds__({variant.threads})',
            f"{variant.symbol}(const __grid_constant__ SqueezeExciteParams p) {{",
            f"  SqueezeExcite<{kernel.name}, {variant.unroll}, {variant.threads}>::{step}(p);",
            "}",
            "",
        ]
    if meaning.depthwise is not None:
        tiles = [v for v in kernel.variants if isinstance(v, DepthwiseVariant)]
        text += depthwise_cuda.lines_of(f"{kernel.name}_map", meaning.depthwise, tiles, sums=True)
    return text


def _struct(name: str, meaning: SqueezeExcite) -> list[str]:
    body = [
        f"using Stored = {DTYPES[meaning.dtype].cuda};",
        f"static constexpr int kChannels = {meaning.channels};",
        f"static constexpr int kHidden = {meaning.hidden};",
        f"static constexpr int kOutputs = {meaning.results};",
        f"static constexpr bool kSums = {str(meaning.depthwise is not None).lower()};",
        *_apply("First", meaning.first, meaning.dtype),
        *_apply("Second", meaning.second, meaning.dtype),
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};", ""]


def _apply(name: str, layer: SqueezeExciteLayer, dtype: str) -> list[str]:
    return [
        f"struct {name} {{",
        "  __device__ static float apply(float x0) {",
        *(f"    {line}" for line in function_body(layer.program, ["x0"], (dtype,))),
        "  }",
        "};",
    ]

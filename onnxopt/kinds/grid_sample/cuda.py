"""CUDA source of samples, on top of cuda_kernels/grid_sample/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.program.core import Transform, TransformRead
from onnxopt.program.cuda_text.cores import data, function_body
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.grid_sample import GridSample

HEADER = "grid_sample/grid_sample.cuh"
_PARAMS = "GridSampleParams"
_UNROLLED_TAPS = 16  # elements of a channel that a thread asks for at once


def lines(kernel: Kernel) -> list[str]:
    """The kernel's meaning as a struct, and one entry point per variant."""
    meaning = cast(GridSample, kernel.program)
    text = [*_struct(kernel.name, meaning), ""]
    for v in kernel.variants:
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ {_PARAMS} p) {{",
            f"  grid_sample<{kernel.name}, {v.vector}, {v.threads}>(p);",
            "}",
            "",
        ]
    return text


def _struct(name: str, meaning: GridSample) -> list[str]:
    weights = meaning.x if meaning.weights is None else meaning.weights
    body = [
        f"using Data = {_type(meaning, meaning.data)};",
        f"using Grid = {_type(meaning, meaning.x)};",
        f"using Weight = {_type(meaning, weights)};",
        f"using Result = {DTYPES[meaning.output].cuda};",
        f"static constexpr int kData = {meaning.data};",
        f"static constexpr int kX = {meaning.x};",
        f"static constexpr int kWeights = {-1 if meaning.weights is None else meaning.weights};",
        f"static constexpr int kDims = {meaning.dims};",
        f"static constexpr int kMaps = {1 if meaning.view is None else len(meaning.view.levels)};",
        f"static constexpr int kUnrolledPoints = {max(_UNROLLED_TAPS // meaning.taps, 1) if meaning.summed else 1};",
        f"static constexpr GridMode kMode = GridMode::k{meaning.mode.title()};",
        f"static constexpr GridPadding kPadding = GridPadding::k{meaning.padding.title()};",
        f"static constexpr bool kAlignCorners = {str(meaning.align_corners).lower()};",
        f"static constexpr bool kDataVectors = {str(meaning.reads_vectors).lower()};",
        f"static constexpr bool kResultVectors = {str(not meaning.result_planes).lower()};",
        "struct Before {",
        f"  __device__ static float apply(const {_PARAMS}& p, float x0, int c) {{",
        *(f"    {line}" for line in _applied(meaning, meaning.prologue, DTYPES[meaning.inputs[meaning.x]].name)),
        "  }",
        "};",
        "struct After {",
        f"  __device__ static float apply(const {_PARAMS}& p, float x0, int64_t i, int c) {{",
        *(f"    {line}" for line in _applied(meaning, meaning.epilogue, meaning.dtype)),
        "  }",
        "};",
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _applied(meaning: GridSample, part: Transform | None, dtype: str) -> Sequence[str]:
    """The body of a function that applies a part to one element x0. dtype: in which that is stored in the graph."""
    if part is None:
        return ["return x0;"]
    names = ["x0", *(f"widen({data(meaning.inputs, read.input)}[{_at(read)}])" for read in part.reads)]
    return function_body(part.program, names, (dtype, *part.program.inputs[1:]))


def _at(read: TransformRead) -> str:
    return {"element": "i", "channel": "c", "scalar": "0"}[read.form]


def _type(meaning: GridSample, position: int) -> str:
    return DTYPES[meaning.inputs[position]].cuda

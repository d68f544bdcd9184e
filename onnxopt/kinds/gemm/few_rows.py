"""Entry points for GEMMs of few rows, which read weights at memory bandwidth (cuda_kernels/gemm/).

A decoding step multiplies every weight of the model by one row, or by one row per sequence of a batch. cuBLASLt pads
its tiles with empty rows and reaches half of the memory bandwidth. The library runs one of these entry points where a
has few rows, b is transposed and all operands are aligned. cuBLASLt runs the other calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.gemm import Gemm
from onnxopt.program.hardware import ACCESS_BYTES

HEADER = "gemm/few_rows.cuh"
_THREADS = 64
_SHAPES = {1: (1, 8), 2: (1, 8)}  # rows of a -> (columns per warp, vectors per column in flight); benchmarks/notes.md
_ACTIVATIONS = {"none": "kNone", "relu": "kRelu", "gelu_tanh": "kGeluTanh"}


@dataclasses.dataclass(frozen=True)
class FewRowsVariant(Variant):
    """For up to `rows` rows of a. A warp computes `columns` columns, `unroll` vectors of each at a time."""

    rows: int = 1
    columns: int = 1


def choose(name: str, meaning: Gemm, regions: Sequence[Region], shapes: Shapes) -> tuple[FewRowsVariant, ...]:
    """Entry points for every number of rows that a region may have at run time, fewest first; none for many rows."""
    if not meaning.transpose_b or meaning.transpose_a or meaning.operand_dtype() != meaning.outputs[0]:
        return ()
    rows = [_rows(region, meaning, shapes) for region in regions]
    every = entry_points(name, meaning)
    if None in rows:
        return every
    few = [r for r in rows if r is not None and r <= max(_SHAPES)]
    chosen = {min(v.rows for v in every if v.rows >= r) for r in few}
    return tuple(v for v in every if v.rows in chosen)


def entry_points(name: str, meaning: Gemm) -> tuple[FewRowsVariant, ...]:
    """Entry points for all numbers of rows that count as few, fewest first."""
    return tuple(_variant(name, meaning, rows) for rows in sorted(_SHAPES))


def _variant(name: str, meaning: Gemm, rows: int) -> FewRowsVariant:
    columns, unroll = _SHAPES[rows]
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    symbol = f"{name}_rows{rows}"
    return FewRowsVariant(symbol, "", 32, vector, unroll, _THREADS, waits=True, rows=rows, columns=columns)


def _rows(region: Region, meaning: Gemm, shapes: Shapes) -> int | None:
    """Rows of a, over all its matrices. None for single rows of a batch of unknown size."""
    dims = shapes.dims(region.inputs[meaning.a])
    if dims is None:
        return max(_SHAPES) + 1
    known, open_dims = 1, 0
    for dim in dims[:-1]:
        if isinstance(dim, int):
            known *= dim
        else:
            open_dims += 1
    if open_dims == 0:
        return known
    return None if open_dims == 1 and known == 1 else max(_SHAPES) + 1


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry points."""
    meaning = kernel.program
    assert isinstance(meaning, Gemm)
    dtype = DTYPES[meaning.outputs[0]].cuda
    text: list[str] = []
    for v in kernel.variants:
        assert isinstance(v, FewRowsVariant)
        activation = f"Activation::{_ACTIVATIONS[meaning.activation]}"
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ FewRowsParams params) {{",
            f"  few_rows<{dtype}, {activation}, {v.rows}, {v.columns}, {v.unroll}, {v.threads}>(params);",
            "}",
            "",
        ]
    return text

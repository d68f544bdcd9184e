"""Entry points for GEMMs of few rows, which read weights at memory bandwidth (cuda_kernels/gemm/).

A decoding step multiplies every weight of the model by one row, or by one row per sequence of a batch. cuBLASLt pads
its tiles with empty rows and reaches half of the memory bandwidth. Up to four rows of 16-bit floats run on the matrix
units, up to two of float32 in threads. The library runs one of these entry points where a
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
from onnxopt.program.hardware import ACCESS_BYTES, WARP

HEADER, HEADER_OF_PRODUCTS = "gemm/few_rows.cuh", "gemm/few_rows_products.cuh"  # the second has the first
_THREADS = 64
_SHAPES = {1: (1, 8), 2: (1, 8)}  # rows of a -> (columns per warp, vectors per column in flight); benchmarks/notes.md
# Of 16-bit floats, on the matrix units: rows of a; the warps of a block and its matrices of 16 columns, by columns.
_ROWS_OF_PRODUCTS = (2, 4)
_FEW_COLUMNS = 16 * 264  # two blocks for each multiprocessor of a large GPU
_WARPS_AND_TILES = {True: (16, 1), False: (8, 2)}  # whether columns are few
_BLOCKS = 2  # of a multiprocessor, that registers are limited for
_CHUNK_BYTES = 2 * 16 * 128  # of 16 columns, that a warp has under way
_SIXTEEN_BIT = ("float16", "bfloat16")
_MANY = 1 << 20  # rows
_ACTIVATIONS = {"none": "kNone", "relu": "kRelu", "gelu_tanh": "kGeluTanh"}


@dataclasses.dataclass(frozen=True)
class FewRowsVariant(Variant):
    """For up to `rows` rows of a. A warp computes `columns` columns, `unroll` vectors of each at a time."""

    rows: int = 1
    columns: int = 1


@dataclasses.dataclass(frozen=True)
class FewRowsProductsVariant(FewRowsVariant):
    """On the matrix units. shared: bytes of a block."""

    shared: int = 0


def choose(name: str, meaning: Gemm, regions: Sequence[Region], shapes: Shapes) -> tuple[FewRowsVariant, ...]:
    """Entry points for every number of rows that a region may have at run time, fewest first; none for many rows."""
    if not meaning.transpose_b or meaning.transpose_a or meaning.operand_dtype() != meaning.outputs[0]:
        return ()
    rows = [_rows(region, meaning, shapes) for region in regions]
    columns = [_columns(region, meaning, shapes) for region in regions]
    every = entry_points(name, meaning, max(columns))
    if None in rows:
        return every
    few = [r for r in rows if r is not None and r <= every[-1].rows]
    chosen = {min(v.rows for v in every if v.rows >= r) for r in few}
    return tuple(v for v in every if v.rows in chosen)


def entry_points(name: str, meaning: Gemm, columns: int = 0) -> tuple[FewRowsVariant, ...]:
    """Entry points for all numbers of rows that count as few, fewest first."""
    if meaning.outputs[0] in _SIXTEEN_BIT:
        return tuple(_of_products(name, rows, columns) for rows in _ROWS_OF_PRODUCTS)
    return tuple(_variant(name, meaning, rows) for rows in sorted(_SHAPES))


def _variant(name: str, meaning: Gemm, rows: int) -> FewRowsVariant:
    columns, unroll = _SHAPES[rows]
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    symbol = f"{name}_rows{rows}"
    return FewRowsVariant(symbol, "", 32, vector, unroll, _THREADS, waits=True, rows=rows, columns=columns)


def _of_products(name: str, rows: int, columns: int) -> FewRowsProductsVariant:
    warps, tiles = _WARPS_AND_TILES[columns <= _FEW_COLUMNS]
    return FewRowsProductsVariant(
        f"{name}_rows{rows}", "", 32, ACCESS_BYTES // 2, 2, warps * WARP, waits=True, rows=rows,
        columns=16 * tiles // warps, shared=warps * tiles * _CHUNK_BYTES,
    )  # fmt: skip


def _columns(region: Region, meaning: Gemm, shapes: Shapes) -> int:
    """Columns of the result, 0 where they are not known."""
    dims = shapes.dims(region.inputs[meaning.b])
    return dims[-2] if dims is not None and len(dims) > 1 and isinstance(dims[-2], int) else 0


def _rows(region: Region, meaning: Gemm, shapes: Shapes) -> int | None:
    """Rows of a, over all its matrices. None for single rows of a batch of unknown size."""
    dims = shapes.dims(region.inputs[meaning.a])
    if dims is None:
        return _MANY
    known, open_dims = 1, 0
    for dim in dims[:-1]:
        if isinstance(dim, int):
            known *= dim
        else:
            open_dims += 1
    if open_dims == 0:
        return known
    return None if open_dims == 1 and known == 1 else _MANY


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry points."""
    meaning = kernel.program
    assert isinstance(meaning, Gemm)
    dtype = DTYPES[meaning.outputs[0]].cuda
    text: list[str] = []
    for v in kernel.variants:
        assert isinstance(v, FewRowsVariant)
        activation = f"Activation::{_ACTIVATIONS[meaning.activation]}"
        call = f"few_rows<{dtype}, {activation}, {v.rows}, {v.columns}, {v.unroll}, {v.threads}>"
        bounds = str(v.threads)
        if isinstance(v, FewRowsProductsVariant):
            tiles, bounds = v.columns * v.threads // WARP // 16, f"{v.threads}, {_BLOCKS}"
            call = f"few_rows_products<{dtype}, {activation}, {v.rows}, {tiles}, {v.threads}>"
        text += [
            f'extern "C" __global__ void __launch_bounds__({bounds})',
            f"{v.symbol}(const __grid_constant__ FewRowsParams params) {{",
            f"  {call}(params);",
            "}",
            "",
        ]
    return text

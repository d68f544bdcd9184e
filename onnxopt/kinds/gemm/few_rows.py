"""Entry points for GEMMs of few rows, which read weights at memory bandwidth (cuda_kernels/gemm/).

A decoding step multiplies every weight of the model by one row, or by one row per sequence of a batch. cuBLASLt pads
its tiles with empty rows and reaches half of the memory bandwidth. Up to four rows of 16-bit floats run on the matrix
units from compute capability 8.0 on; up to two rows run in threads elsewhere. The library runs one of these entry
points where a has few rows, b is transposed and all operands are aligned. cuBLASLt runs the other calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from onnxopt.costs.gemm import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.gemm import FewRowsVariant, Gemm
from onnxopt.program.hardware import ACCESS_BYTES, WARP

HEADER, HEADER_OF_PRODUCTS = "gemm/few_rows.cuh", "gemm/few_rows_products.cuh"  # the second has the first
_COSTS = numbers()
_SIXTEEN_BIT = ("float16", "bfloat16")
_MANY = 1 << 20  # rows
ACTIVATIONS = {"none": "kNone", "relu": "kRelu", "gelu": "kGelu", "gelu_tanh": "kGeluTanh", "silu": "kSilu"}


@dataclasses.dataclass(frozen=True)
class FewRowsProductsVariant(FewRowsVariant):
    """On the matrix units."""


def choose(name: str, meaning: Gemm, regions: Sequence[Region], shapes: Shapes) -> tuple[FewRowsVariant, ...]:
    """Entry points for every number of rows that a region may have at run time, fewest first; none for many rows."""
    if not meaning.transpose_b or meaning.transpose_a or meaning.operands != meaning.outputs[0]:
        return ()
    counts = [rows(region, meaning, shapes) for region in regions]
    every = entry_points(name, meaning, [_columns(region, meaning, shapes) for region in regions])
    if None in counts:
        return every
    serving = {v for r in counts if r is not None for v in _serving(r, every)}
    return tuple(v for v in every if v in serving)


def _serving(rows: int, every: Sequence[FewRowsVariant]) -> list[FewRowsVariant]:
    """Those for so many rows and the fewest others, on the matrix units and in threads."""
    serving: list[FewRowsVariant] = []
    for kind in (FewRowsProductsVariant, FewRowsVariant):
        fits = [v for v in every if type(v) is kind and v.rows >= rows]
        serving += [v for v in fits if v.rows == min(n.rows for n in fits)]
    return serving


def entry_points(name: str, meaning: Gemm, columns: Collection[int] = (0,)) -> tuple[FewRowsVariant, ...]:
    """Entry points for all numbers of rows that count as few, the first that a GPU has room for the best.

    columns: of the products, 0 where they are not known.
    """
    in_threads = tuple(_variant(name, meaning, rows) for rows in sorted(_COSTS.few_rows_shapes))
    if meaning.outputs[0] not in _SIXTEEN_BIT:
        return in_threads
    few = sorted({0 < n <= _COSTS.few_columns for n in columns}, reverse=True)
    return (*(_product_variants(name, is_few) for is_few in few), *in_threads)


def _variant(name: str, meaning: Gemm, rows: int) -> FewRowsVariant:
    columns, unroll = _COSTS.few_rows_shapes[rows]
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    symbol = f"{name}_rows{rows}"
    return FewRowsVariant(
        symbol, "", 32, vector, unroll, _COSTS.few_rows_threads, waits=True, rows=rows, columns=columns
    )


def codes_variants(
    name: str, meaning: Gemm, regions: Sequence[Region], shapes: Shapes
) -> tuple[FewRowsProductsVariant, ...]:
    """Entry points for few rows of 8-bit floats, where a region may have them."""
    counts = [rows(region, meaning, shapes) for region in regions]
    if all(r is not None and r > _COSTS.codes_rows for r in counts):
        return ()
    few = {0 < _columns(region, meaning, shapes) <= _COSTS.few_columns for region in regions}
    return tuple(_product_variants(name, is_few, _COSTS.codes_rows, 1) for is_few in sorted(few, reverse=True))


def _product_variants(
    name: str, few_columns: bool, rows: int = _COSTS.products_rows, size: int = 2
) -> FewRowsProductsVariant:
    """size: bytes of an element of the operands."""
    warps, tiles, shared = _COSTS.shape_of_few_columns if few_columns else _COSTS.shape_of_many_columns
    return FewRowsProductsVariant(
        f"{name}_products{warps}", "", 32, ACCESS_BYTES // size, 2, warps * WARP, waits=True, rows=rows,
        columns=16 * tiles // warps, shared=shared,
    )  # fmt: skip


def _columns(region: Region, meaning: Gemm, shapes: Shapes) -> int:
    """Columns of the result, 0 where they are not known."""
    dims = shapes.dims(region.inputs[meaning.b])
    return dims[-2] if dims is not None and len(dims) > 1 and isinstance(dims[-2], int) else 0


def rows(region: Region, meaning: Gemm, shapes: Shapes) -> int | None:
    """Rows of a, over all its matrices. None for single rows of a batch of unknown size."""
    dims = shapes.dims(region.inputs[meaning.a])
    if dims is None:
        return _MANY
    product, open_dims = 1, 0
    for dim in dims[:-1]:
        if isinstance(dim, int):
            product *= dim
        else:
            open_dims += 1
    if open_dims == 0:
        return product
    return None if open_dims == 1 and product == 1 else _MANY


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry points."""
    meaning = kernel.program
    assert isinstance(meaning, Gemm)
    dtype = DTYPES[meaning.outputs[0]].cuda
    text: list[str] = []
    for v in kernel.variants:
        if not isinstance(v, FewRowsVariant):
            continue  # of another form
        activation = f"Activation::{ACTIVATIONS[meaning.activation]}"
        call = f"few_rows<{dtype}, {activation}, {v.rows}, {v.columns}, {v.unroll}, {v.threads}>"
        bounds = str(v.threads)
        if isinstance(v, FewRowsProductsVariant):
            tiles, bounds = v.columns * v.threads // WARP // 16, f"{v.threads}, {_COSTS.blocks_at_once}"
            operands = "CodeOperands" if meaning.has_float8_operands else f"FloatOperands<{dtype}>"
            call = f"few_rows_products<{dtype}, {operands}, {activation}, {v.rows}, {tiles}, {v.threads}>"
        text += [
            f'extern "C" __global__ void __launch_bounds__({bounds})',
            f"{v.symbol}(const __grid_constant__ FewRowsParams params) {{",
            f"  {call}(params);",
            "}",
            "",
        ]
    return text

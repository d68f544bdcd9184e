"""Entry points for products with an activation that cuBLASLt does not have (cuda_kernels/gemm/large_products.cuh).

An exact GELU or a SiLU after a product of cuBLASLt reads and writes the whole result once more. On Hopper, entry
points for many rows compute the product as fast as cuBLASLt and store the result once. One more computes the activation
in place, after all other products. The library (custom_ops/cuda/gemm/large_products.cc) chooses by a call's sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.costs.gemm import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm import few_rows
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.gemm import ActivationVariant, Gemm, TilesVariant
from onnxopt.program.hardware import ACCESS_BYTES, WARP
from onnxopt.program.schema import Variant

_GROUPS, _ROWS = 2, 128  # warpgroups that multiply, and rows of a tile of the result
_ROW = 128  # bytes of a row of operands in shared memory
_STAGES = numbers().large_stages
_ENDED = 16 * (64 * 2 + 16)  # bytes of shared memory through which a warp stores results
_ALIGNED = 1024 - 16  # bytes at most in front of the first tile
_IN_PLACE_THREADS = numbers().in_place_threads
_MIN_ROWS = numbers().min_large_rows


def choose(name: str, meaning: Gemm, regions: Sequence[Region], shapes: Shapes) -> tuple[Variant, ...]:
    """The entry points for an activation after a product; none where cuBLASLt has it."""
    if not meaning.activates_apart:
        return ()
    rows = [few_rows.rows(region, meaning, shapes) for region in regions]
    many = not meaning.transpose_a and any(r is None or r >= _MIN_ROWS for r in rows)
    many &= meaning.transpose_b or meaning.dtype != "float32"  # TF32 is multiplied along rows of both alone
    tiles = [_tiles(name, columns, stages) for columns, stages in _STAGES.items() if many]
    width = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    in_place = ActivationVariant(f"{name}_activation", "", 32, width, 1, _IN_PLACE_THREADS, waits=True)
    return (*tiles, in_place)


def _tiles(name: str, columns: int, stages: int) -> TilesVariant:
    threads = (_GROUPS + 1) * 4 * WARP
    stage = (_ROWS + columns) * _ROW
    shared = _ALIGNED + stages * stage + 4 * _GROUPS * _ENDED + 16 * stages
    return TilesVariant(f"{name}_tiles{columns}", "", 32, 1, 1, threads, waits=True, columns=columns, shared=shared)


def headers(variants: Sequence[Variant]) -> list[str]:
    """What the CUDA text of these entry points includes."""
    tiles = any(isinstance(v, TilesVariant) for v in variants)
    in_place = any(isinstance(v, ActivationVariant) for v in variants)
    return ["gemm/large_products.cuh"] * tiles + ["gemm/activate.cuh"] * in_place


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry points."""
    meaning = kernel.program
    assert isinstance(meaning, Gemm)
    activated = f"{DTYPES[meaning.outputs[0]].cuda}, Activation::{few_rows.ACTIVATIONS[meaning.activation]}"
    text: list[str] = []
    for v in kernel.variants:
        if isinstance(v, TilesVariant):
            tile = f"{activated}, {v.columns}, {_STAGES[v.columns]}, {str(meaning.transpose_b).lower()}"
            told = f'  static_assert(LargeProduct<{tile}>::kSharedBytes == {v.shared}, "as the host was told");'
            text += [*_head(v, "LargeProductParams", ", 1"), told, f"  large_product<{tile}>(params);", "}", ""]
        if isinstance(v, ActivationVariant):
            call = f"  activate_in_place<{activated}, {v.threads}>(params);"
            text += [*_head(v, "ActivateParams"), call, "}", ""]
    return text


def _head(variant: Variant, params: str, blocks: str = "") -> list[str]:
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads}{blocks})',
        f"{variant.symbol}(const __grid_constant__ {params} params) {{",
    ]

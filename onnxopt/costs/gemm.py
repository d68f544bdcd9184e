"""Products: the shapes of our kernels, and where they are faster than cuBLASLt's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class GemmCosts:
    """The numbers of costs/data/gemm.json, which says what each is."""

    few_rows_threads: int
    few_rows_shapes: Mapping[int, tuple[int, int]]
    products_rows: int
    codes_rows: int
    few_columns: int
    shape_of_few_columns: tuple[int, int, int]
    shape_of_many_columns: tuple[int, int, int]
    blocks_at_once: int
    large_stages: Mapping[int, int]
    in_place_threads: int
    min_large_rows: int
    large_call: float
    large_tile: float
    large_tile_column: float
    large_step: float
    large_step_column: float
    their_call: float
    their_tile: float
    their_step: float
    their_columns: float
    large_float32: float
    their_call_float32: float
    their_tile_float32: float
    their_step_float32: float
    clear: float
    max_packed_rows: int
    packed_shapes: Mapping[int, Mapping[int, tuple[int, int]]]
    gated_shapes: Mapping[int, Mapping[int, tuple[int, int]]]
    one_row_shapes: Mapping[int, tuple[int, int]]
    one_row_warps: tuple[tuple[int | None, int], ...]
    packed_warps: int
    packed_multiprocessors: int
    dequantize_threads: int
    widen_threads: int
    shallow: int
    many_pixels: int
    tuned_algorithms: int
    first_run_algorithms: int


@functools.cache
def numbers() -> GemmCosts:
    """The measured numbers."""
    return load("gemm", GemmCosts)

"""Entry points of mixtures of experts, and their CUDA text on top of cuda_kernels/experts/.

Their order is that of custom_ops/kernel_file/variants.h: both products for each tile, the smallest first,
after finding the rows of all experts where the tile is for many rows; the activation; adding up the choices; then what
is launched between products of cuBLASLt: sorting the rows, the activation, adding up.
"""

from __future__ import annotations

import dataclasses
from typing import cast

from onnxopt.costs.experts import numbers
from onnxopt.fusion.region import Kernel
from onnxopt.program.cuda_text.cores import function_body
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.experts import FACTORS, Experts, ExpertsVariant
from onnxopt.program.hardware import ACCESS_BYTES, WARP

HEADER = "experts/sorted.cuh"
_ROUTE_THREADS, _THREADS = numbers().route_threads, numbers().threads
_PRODUCTS = ("first", "second")
_SORTED_STEPS = ("sort", "activate_sorted", "join_sorted")


@dataclasses.dataclass(frozen=True)
class Tile:
    """Rows and columns of a block, its warps, bytes of each row that it brings to shared memory together, places for
    them, and tiles of 16 columns of a warp in each half (cuda_kernels/experts/tile.cuh)."""

    rows: int
    columns: int
    warps: int
    depth_bytes: int
    stages: int
    column_tiles: int = 1

    def cuda(self, dtype: str) -> str:
        sides = (self.rows, self.columns, self.warps, self.depth_bytes, self.stages, self.column_tiles)
        return f"ExpertsTile<{DTYPES[dtype].cuda}, {', '.join(map(str, sides))}>"

    def shared_bytes(self, dtype: str) -> int:
        size = DTYPES[dtype].size
        weight = self.depth_bytes // size * (self.columns * size + ACCESS_BYTES)
        return self.stages * (weight + self.rows * (self.depth_bytes + ACCESS_BYTES))


TILES = tuple(Tile(*sides) for sides in numbers().tiles)
_FEW_ROWS_STEPS = numbers().tiles_of_few


def entry_points(name: str, meaning: Experts) -> tuple[ExpertsVariant, ...]:
    """All launches, in the library's order."""
    dtype = meaning.dtype
    vector = ACCESS_BYTES // DTYPES[dtype].size

    def launch(step: str, threads: int, tile: Tile | None = None) -> ExpertsVariant:
        variants = ExpertsVariant(f"{name}_{step}", "", 32, vector, 1, threads, waits=True)
        if tile is None:
            return variants
        depth, shared = tile.depth_bytes // DTYPES[dtype].size, tile.shared_bytes(dtype)
        return dataclasses.replace(variants, rows=tile.rows, columns=tile.columns, depth=depth, shared=shared)

    variants: list[ExpertsVariant] = []
    for k, tile in enumerate(TILES):
        if k >= _FEW_ROWS_STEPS:
            variants.append(launch(f"route{tile.rows}", _ROUTE_THREADS))
        variants += [launch(f"{step}{tile.rows}", tile.warps * WARP, tile) for step in _PRODUCTS]
    variants += [launch(step, _THREADS) for step in ("activate", "join", *_SORTED_STEPS)]
    (sort,) = (k for k, variant in enumerate(variants) if variant.symbol == f"{name}_sort")
    variants[sort] = dataclasses.replace(variants[sort], least_rows=least_rows(meaning))
    return tuple(variants)


def least_rows(meaning: Experts) -> int:
    """Rows of an expert on average from which cuBLASLt multiplies."""
    return numbers().min_rows(DTYPES[meaning.dtype].size, meaning.flops_of_row)


def lines(kernel: Kernel) -> list[str]:
    """The operation as a struct, and every entry point."""
    meaning = cast(Experts, kernel.program)
    text = struct(kernel.name, meaning)
    for variant in kernel.variants:
        step = variant.symbol.removeprefix(f"{kernel.name}_")
        text += [
            f'extern "C" __global__ void __launch_bounds__({variant.threads})',
            f"{variant.symbol}(const __grid_constant__ ExpertsParams p) {{",
            *(f"  {line}" for line in _call(kernel.name, step, meaning, cast(ExpertsVariant, variant))),
            "}",
            "",
        ]
    return text


def _call(name: str, step: str, meaning: Experts, variant: ExpertsVariant) -> list[str]:
    if step in _SORTED_STEPS:
        return [f"SortedExperts<{name}>::run_{step.removesuffix('_sorted')}<{variant.threads}>(p);"]
    if step in ("activate", "join"):
        return [f"Experts<{name}>::run_{step}<{variant.threads}>(p);"]
    if step.startswith("route"):
        return [f"Experts<{name}>::run_route<{step.removeprefix('route')}, {variant.threads}>(p);"]
    (k,) = (k for k, tile in enumerate(TILES) if tile.rows == variant.rows)
    second = "true" if step.startswith("second") else "false"
    return [
        f"using Tile = {TILES[k].cuda(meaning.dtype)};",
        f'static_assert(Tile::kSharedBytes == {variant.shared}, "as the host was told");',
        f"Experts<{name}>::run_{'few' if k < _FEW_ROWS_STEPS else 'many'}<Tile, {second}>(p);",
    ]


def _text(flag: bool) -> str:
    return str(flag).lower()


def struct(name: str, meaning: Experts) -> list[str]:
    """The sizes, the dtypes and the activation, as cuda_kernels/experts/experts.cuh reads them."""
    operands = ["x0", "x1"][: len(meaning.program.inputs)]
    body = function_body(meaning.program, operands, (meaning.dtype,) * len(operands))
    parameters = ", ".join(f"float {x}" for x in operands)
    return [
        f"struct {name} {{",
        f"  using Stored = {DTYPES[meaning.dtype].cuda};",
        f"  using Factor = {DTYPES[meaning.inputs[FACTORS]].cuda};",
        f"  static constexpr int kExperts = {meaning.experts};",
        f"  static constexpr int kChosen = {meaning.chosen};",
        f"  static constexpr int kColumns = {meaning.columns};",
        f"  static constexpr int kHidden = {meaning.hidden};",
        f"  static constexpr bool kGated = {_text(meaning.gated)};",
        f"  static constexpr bool kInterleaved = {_text(meaning.interleaved)};",
        f"  static constexpr bool kFirstBiased = {_text(meaning.first_bias is not None)};",
        f"  static constexpr bool kSecondBiased = {_text(meaning.second_bias is not None)};",
        f"  __device__ static float apply({parameters}) {{",
        *(f"    {line}" for line in body),
        "  }",
        "};",
        "",
    ]

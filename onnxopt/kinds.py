"""The one place that tells the kinds of regions apart: what a region means, its entry points and its CUDA text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from onnxopt import gemm_regions, generate_pointwise, generate_rowwise, lower_rowwise, row_variants, variants
from onnxopt.lower import lower as lower_pointwise
from onnxopt.program import Program
from onnxopt.regions import Kernel, Kind, Meaning, Region, Variant
from onnxopt.row_program import RowProgram
from onnxopt.shapes import Shapes


def lower(region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
    """What the region computes, in the form of its kind."""
    match region.kind:
        case Kind.GEMM:
            return gemm_regions.lower(region, shapes)
        case Kind.POINTWISE:
            return lower_pointwise(region.nodes, region.inputs, region.outputs, opsets, shapes)
        case Kind.ROWWISE:
            return lower_rowwise.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)


def entry_points(
    name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
) -> tuple[Variant, ...]:
    """The entry points of the kernel `name`, which stands for all of `regions`; regions[0] gives its kind."""
    match regions[0].kind:
        case Kind.GEMM:
            return ()  # cuBLASLt has the code
        case Kind.POINTWISE:
            return variants.choose(name, cast(Program, meaning), regions, shapes)
        case Kind.ROWWISE:
            return row_variants.choose(name, cast(RowProgram, meaning), regions, opsets, shapes)


def cuda(kernel: Kernel) -> list[str]:
    """Lines of CUDA source with every entry point of the kernel."""
    match kernel.kind:
        case Kind.GEMM:
            return []
        case Kind.POINTWISE:
            return generate_pointwise.lines(kernel)
        case Kind.ROWWISE:
            return generate_rowwise.lines(kernel)


def headers(kernels: Sequence[Kernel]) -> list[str]:
    """Headers of cuda_kernels/ that the kernels' CUDA text needs."""
    found = {k.kind for k in kernels}
    return ["pointwise.cuh", *([generate_rowwise.HEADER] if Kind.ROWWISE in found else [])]

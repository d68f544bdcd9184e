"""The one place that tells the kinds of regions apart: what a region means, its entry points and its CUDA text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from onnxopt.fusion.regions import Kernel, Kind, Meaning, Region, Variant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.attention import token_attention
from onnxopt.kinds.gemm import few_rows, find
from onnxopt.kinds.pointwise import cuda as generate_pointwise
from onnxopt.kinds.pointwise import entry_points as variants
from onnxopt.kinds.pointwise.lower import lower as lower_pointwise
from onnxopt.kinds.rowwise import cuda as generate_rowwise
from onnxopt.kinds.rowwise import entry_points as row_variants
from onnxopt.kinds.rowwise import lower as lower_rowwise
from onnxopt.kinds.scan import cuda as generate_scan
from onnxopt.kinds.scan import entry_points as scan_variants
from onnxopt.kinds.scan import find as scan_regions
from onnxopt.program.attention import TokenAttention
from onnxopt.program.gemm import Gemm
from onnxopt.program.pointwise import Program
from onnxopt.program.rowwise import RowProgram
from onnxopt.program.scan import ScanProgram


def lower(region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
    """What the region computes, in the form of its kind."""
    match region.kind:
        case Kind.ATTENTION:
            return token_attention.lower(region, shapes)
        case Kind.GEMM:
            return find.lower(region, shapes)
        case Kind.POINTWISE:
            return lower_pointwise(region.nodes, region.inputs, region.outputs, opsets, shapes)
        case Kind.ROWWISE:
            return lower_rowwise.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)
        case Kind.SCAN:
            return scan_regions.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)


def entry_points(
    name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
) -> tuple[Variant, ...]:
    """The entry points of the kernel `name`, which stands for all of `regions`; regions[0] gives its kind."""
    match regions[0].kind:
        case Kind.ATTENTION:
            return token_attention.entry_points(name, cast(TokenAttention, meaning))
        case Kind.GEMM:
            return few_rows.choose(name, cast(Gemm, meaning), regions, shapes)  # cuBLASLt has the rest
        case Kind.POINTWISE:
            return variants.choose(name, cast(Program, meaning), regions, shapes)
        case Kind.ROWWISE:
            return row_variants.choose(name, cast(RowProgram, meaning), regions, opsets, shapes)
        case Kind.SCAN:
            return scan_variants.choose(name, cast(ScanProgram, meaning), regions, shapes)


def cuda(kernel: Kernel) -> list[str]:
    """Lines of CUDA source with every entry point of the kernel."""
    match kernel.kind:
        case Kind.ATTENTION:
            return list(token_attention.lines(kernel))
        case Kind.GEMM:
            return few_rows.lines(kernel)
        case Kind.POINTWISE:
            return generate_pointwise.lines(kernel)
        case Kind.ROWWISE:
            return generate_rowwise.lines(kernel)
        case Kind.SCAN:
            return generate_scan.lines(kernel)


def headers(kernels: Sequence[Kernel]) -> list[str]:
    """Headers of cuda_kernels/ that the kernels' CUDA text needs."""
    found = {k.kind for k in kernels if k.variants}
    tiled = any(v.tile for k in kernels if k.kind is Kind.POINTWISE for v in k.variants)
    pointwise = "pointwise_tiled.cuh" if tiled else "pointwise.cuh"
    others = {Kind.ROWWISE: generate_rowwise.HEADER, Kind.GEMM: few_rows.HEADER}
    others |= {Kind.ATTENTION: token_attention.HEADER, Kind.SCAN: generate_scan.HEADER}
    return [pointwise, *(header for kind, header in others.items() if kind in found)]

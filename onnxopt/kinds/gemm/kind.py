"""The kind of kernels that are GEMMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.codes import is_dequantize
from onnxopt.graph.layout.orders import RANKS
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm import few_rows, large_products, match, packed_entry_points, widened
from onnxopt.program.gemm import Gemm
from onnxopt.program.schema import Variant

_AROUND_CODES = frozenset({"Shape", "Reshape", "Transpose", "Cast"})  # around the codes that a product reads


class GemmKind(Kind):
    """MatMul or Gemm with the transposes before it, and scale, bias, residual and activation behind it.

    The library runs a GEMM through cuBLASLt; a GEMM of few rows and one with an exact Gelu or a SiLU have entry points
    of their own, one of 8-bit floats has one that widens them.
    """

    name = "gemm"
    library = "cuBLASLt"

    def find_early(self, context: Context) -> list[Region]:
        match.reserve(context)
        return []

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        turned = sum(n.op_type == "Transpose" and len(n.attributes.get_ints("perm", ())) in RANKS for n in region.nodes)
        if turned > 1 or any(n.op_type == "Conv" for n in region.nodes):
            return [n for n in region.nodes if n.op_type not in ("Transpose", "Reshape")]
        if any(value.dtype == ir.DataType.FLOAT8E4M3FN for value in region.inputs):
            return region.nodes[next(k for k, n in enumerate(region.nodes) if n.op_type in ("MatMul", "Gemm")) :]
        if any(is_dequantize(n) for n in region.nodes):
            return [n for n in region.nodes if is_dequantize(n) or n.op_type not in _AROUND_CODES]
        return region.nodes

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return match.lower(region, shapes)

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        gemm = cast(Gemm, meaning)
        if gemm.packed is not None:
            return packed_entry_points.entry_points(name, gemm, regions)
        if gemm.has_float8_operands:
            return (*widened.entry_points(name), *few_rows.codes_variants(name, gemm, regions, shapes))
        few = few_rows.choose(name, gemm, regions, shapes)
        return (*few, *large_products.choose(name, gemm, regions, shapes))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        meanings = [cast(Gemm, kernel.program) for kernel in kernels]
        variants = [v for kernel in kernels for v in kernel.variants]
        packed = [gemm.packed for gemm in meanings if gemm.packed is not None]
        if packed:
            few_rows_header = packed_entry_points.header(packed)  # which includes the others
        else:
            codes = any(gemm.has_float8_operands for gemm in meanings)
            units = any(isinstance(v, few_rows.FewRowsProductsVariant) for v in variants)
            codes_header = widened.HEADER_OF_PRODUCTS if units else widened.HEADER
            few_rows_header = codes_header if codes else few_rows.HEADER_OF_PRODUCTS if units else few_rows.HEADER
        return [few_rows_header, *large_products.headers(variants)]

    def cuda(self, kernel: Kernel) -> list[str]:
        gemm = cast(Gemm, kernel.program)
        if gemm.packed is not None:
            return packed_entry_points.lines(kernel)
        codes_lines = widened.lines(kernel) if gemm.has_float8_operands else []
        return [*codes_lines, *few_rows.lines(kernel), *large_products.lines(kernel)]


GEMM = GemmKind()

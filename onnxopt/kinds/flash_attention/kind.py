"""The kind of kernels that compute attention of many queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.codes import is_quantize
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention import cuda, entry_points, match
from onnxopt.kinds.flash_attention.codes import attending
from onnxopt.program.flash_attention import FlashAttention, FlashAttentionVariant
from onnxopt.program.schema import Variant

_NAMING = frozenset({"MatMul", "Tanh", "Softmax"})


class FlashAttentionKind(Kind):
    """Attention of many queries, which reads queries, keys and values where they lie."""

    name = "flash_attention"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return match.lower(region, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        last = attending(region.nodes[-1])
        codes = [node for node in region.nodes if is_quantize(node)]
        if last.op_type != "Reshape":
            return [last, *codes]  # the other nodes cut q, k and v out of one tensor
        return [*(node for node in region.nodes if node.op_type in _NAMING), *codes]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(FlashAttention, meaning), regions, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        symbols = {variant.symbol for variant in kernel.variants}
        others = entry_points.others(kernel.name, cast(FlashAttention, kernel.program))
        return [variant for variant in others if variant.symbol not in symbols]

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        variants = [cast(FlashAttentionVariant, v) for kernel in kernels for v in kernel.variants]
        return [cuda.HOPPER_HEADER if any(v.warpgroups is not None for v in variants) else cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


FLASH_ATTENTION = FlashAttentionKind()

"""The kind of kernels that compute attention of one new token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.attention import cuda, match
from onnxopt.program.attention import TokenAttention
from onnxopt.program.schema import Variant


class AttentionKind(Kind):
    """One new token per sequence attends to a cache of keys and values."""

    name = "attention"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return match.lower(region, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return region.nodes[-1:]  # the other nodes compute the sequence lengths

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return cuda.entry_points(name, cast(TokenAttention, meaning))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.header(kernels)]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


ATTENTION = AttentionKind()

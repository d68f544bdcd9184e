"""The kind of kernels that compute the factors of squeeze-excites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.squeeze_excite import entry_points, lower, match, merge
from onnxopt.program.schema import Variant
from onnxopt.program.squeeze_excite import SqueezeExcite


class SqueezeExciteKind(Kind):
    """Two small products of a map's means, and the depthwise convolution in front of the means."""

    name = "squeeze_excite"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def merge(self, context: Context, regions: list[Region]) -> tuple[list[Region], list[Refusal]]:
        return merge.merge(context, self, regions)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return lower.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type not in ("Transpose", "Reshape")]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(SqueezeExcite, meaning), regions, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        return entry_points.alternatives(kernel)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        with_map = any(cast(SqueezeExcite, k.program).depthwise is not None for k in kernels)
        return [entry_points.HEADER_WITH_MAP if with_map else entry_points.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return entry_points.lines(kernel)


SQUEEZE_EXCITE = SqueezeExciteKind()

"""The kind of kernels that are depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning, Variant
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise import cuda, entry_points, find, lower
from onnxopt.program.depthwise import Depthwise


class DepthwiseKind(Kind):
    """A depthwise convolution in NHWC with the elementwise work in front of it and behind it, or a 1x1 convolution and
    elementwise work in front."""

    name = "depthwise"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return find.find(context, self)

    def find_ahead(self, context: Context) -> list[Region]:
        return find.find_ahead(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return lower.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type not in ("Transpose", "Reshape")]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(Depthwise, meaning), regions, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        known = {variant.symbol for variant in kernel.variants}
        others = entry_points.others(kernel.name, cast(Depthwise, kernel.program))
        return [variant for variant in others if variant.symbol not in known]

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


DEPTHWISE = DepthwiseKind()

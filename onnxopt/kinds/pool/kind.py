"""The kind of kernels that are pools of NHWC tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning, Variant
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pool import entry_points, find
from onnxopt.program.pool import Pool


class PoolKind(Kind):
    """MaxPool and AveragePool between the Transposes of the layout pass."""

    name = "pool"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return find.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return find.lower(region, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type != "Transpose"]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(Pool, meaning), regions, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        return entry_points.alternatives(kernel)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [entry_points.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return entry_points.lines(kernel)


POOL = PoolKind()

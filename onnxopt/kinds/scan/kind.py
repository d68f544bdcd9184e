"""The kind of kernels that compute running totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from onnxopt.costs.cpu import numbers
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.operands import constant
from onnxopt.fusion.provider_preference import is_beside_blocked_layout
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.scan import cuda, entry_points, lower, match
from onnxopt.program.scan import ScanProgram
from onnxopt.program.schema import Variant

_MIN_ON_CPU = numbers().min_operators


class Scan(Kind):
    """A CumSum with the elementwise work before and after it."""

    name = "scan"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return lower.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def pays_on_cpu(self, region: Region) -> bool:
        """Whether the CumSum is along the last axis: ORT's CumSum is half as fast there and faster on other axes."""
        if len(region.nodes) < _MIN_ON_CPU or is_beside_blocked_layout(region):
            return False
        axis = next(constant(n.inputs[1]) for n in region.nodes if lower.is_scan(n))
        rank = max((len(v.shape) for v in (*region.inputs, *region.outputs) if v.shape is not None), default=0)
        return axis is not None and int(axis.numpy().item()) in (-1, rank - 1)

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(ScanProgram, meaning), regions, shapes)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


SCAN = Scan()

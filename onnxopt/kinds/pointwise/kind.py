"""The kind of kernels that compute every element of the domain independently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from onnxopt.costs.cpu import numbers
from onnxopt.fusion import eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.provider_preference import is_beside_blocked_layout
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise import alternatives, cuda, entry_points, lower, match
from onnxopt.program.pointwise import PointwiseVariant, Program
from onnxopt.program.schema import Variant

# The CPU kernel gathers element by element, ORT copies blocks (costs/data/cpu.json).
_GATHERED = frozenset({"Transpose", "DepthToSpace", "SpaceToDepth", "Tile", "Gather", "Resize"})
_FUSED = frozenset({"Concat", "Pad"})
_MIN_BESIDE_FUSED = numbers().min_beside_fused


class Pointwise(Kind):
    """Any graph of elementwise operators with broadcasting; index operations become index arithmetic."""

    name = "pointwise"
    splits = True

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return lower.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def pays_on_cpu(self, region: Region) -> bool:
        ops = {n.op_type for n in region.nodes}
        if is_beside_blocked_layout(region) or _GATHERED & ops:
            return False
        return not _FUSED & ops or sum(map(eligibility.is_elementwise, region.nodes)) >= _MIN_BESIDE_FUSED

    def identity(self, meaning: Meaning) -> list[Any]:
        index = meaning.to_json().get("index")  # the rest of the program follows from the nodes
        return [] if index is None else [index]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(Program, meaning), regions, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        return alternatives.alternatives(kernel)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        tiled = any(cast(PointwiseVariant, v).tile for k in kernels for v in k.variants)
        return ["pointwise/tiled.cuh" if tiled else "pointwise/pointwise.cuh"]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


POINTWISE = Pointwise()

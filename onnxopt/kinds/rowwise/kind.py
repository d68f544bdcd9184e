"""The kind of kernels that reduce rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from onnxopt.costs.cpu import numbers
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.provider_preference import is_beside_blocked_layout
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.rowwise import alternatives, cuda, entry_points, lower, match, merge
from onnxopt.program.operators import row_operators
from onnxopt.program.rowwise import RowProgram
from onnxopt.program.schema import Variant

# ORT's CPU provider recognises a norm of single operators by the square root, and has vectorized kernels for norms.
_SPELLS_A_NORM = frozenset({"Sqrt", "Rsqrt"})
_MIN_ON_CPU = numbers().min_operators


class Rowwise(Kind):
    """Reductions along some axes with the elementwise work before, between and after them."""

    name = "rowwise"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def merge(self, context: Context, regions: list[Region]) -> tuple[list[Region], list[Refusal]]:
        return merge.merge(context, self, regions)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return lower.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def pays_on_cpu(self, region: Region) -> bool:
        ops = [n.op_type for n in region.nodes]
        fused_by_ort = any(row_operators.keeps_shape("", op) or op in _SPELLS_A_NORM for op in ops)
        return len(ops) >= _MIN_ON_CPU and not fused_by_ort and not is_beside_blocked_layout(region)

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(RowProgram, meaning), regions, opsets, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        return alternatives.alternatives(kernel)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


ROWWISE = Rowwise()

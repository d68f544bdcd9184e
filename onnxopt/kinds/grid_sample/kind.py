"""The kind of kernels that sample maps at computed positions, with a prologue on the grid and an epilogue.

On the CPU, ONNX Runtime runs the inlined function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.core_growth import CoreKind, Growth
from onnxopt.fusion.core_lowering import CoreMatch, read_outside
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.grid_sample import cuda, entry_points
from onnxopt.kinds.grid_sample.match import matches, why_not
from onnxopt.kinds.grid_sample.samples import OPERATOR
from onnxopt.program.grid_sample import GridSample
from onnxopt.program.schema import Variant

_NAMED = frozenset({OPERATOR, "ReduceSum"})
_MAX_PROLOGUE = 16.0  # instructions for a coordinate, which every thread of a position computes


class GridSampleKind(CoreKind):
    """A GridSample; several of levels that are weighed and summed."""

    name = "grid_sample"
    meaning = GridSample
    operators = frozenset({OPERATOR})
    rounds_prologue = False
    whole_prologue = True
    max_prologue_cost = _MAX_PROLOGUE

    def match(self, node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        return why_not(node, shapes, opsets.get("", 0)) or next(matches(node, shapes))

    def match_within(self, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        """The one with the most nodes that are all among these, and no other GridSample."""
        among = set(nodes)
        cores = [n for n in nodes if self.is_core(n)]
        if not cores:
            return "The region holds no GridSample"
        if reason := why_not(cores[0], shapes, opsets.get("", 0)):
            return reason
        found = next((m for m in matches(cores[0], shapes) if among.issuperset(m.nodes)), None)
        if found is None or not set(cores) <= set(found.nodes):
            return "The region holds other GridSamples than one sum has"
        return found

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        """A region for every GridSample that a kernel can run, with as much around it as one can; none for CPUs alone,
        where the operator is to be seen as what it is."""
        regions: list[Region] = []
        refusals: list[Refusal] = []
        for node in [n for n in context.order if self.is_core(n)]:
            if context.is_owned(node) or not context.cuda:
                continue
            if reason := why_not(node, context.shapes, context.opsets.get("", 0)):
                refusals.append(Refusal(node.name or "", node.op_type, "", reason))
                continue
            free = (m for m in matches(node, context.shapes) if not any(map(context.is_owned, m.nodes)))
            region = next((r for m in free if (r := Growth(context, self, m).region()) is not None), None)
            if region is not None:
                context.take([region.nodes])
                regions.append(region)
        return regions, refusals

    def prologue_pays(self, match: CoreMatch, nodes: Sequence[ir.Node], source: ir.Value, context: Context) -> bool:
        """Whether a coordinate's operands can be read, and its last digits, which the graph rounds, decide nothing."""
        dims, dtype = context.shapes.dims(match.x), context.shapes.dtype(match.x)
        has_pairs = dims is not None and dims[-1] == match.fields["dims"]
        if not has_pairs and len(read_outside(nodes)) > 1:
            return False
        return match.fields["mode"] != "nearest" or (dtype is not None and dtype.name == "float32")

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type in _NAMED]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(GridSample, meaning), regions, shapes)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


GRID_SAMPLE = GridSampleKind()

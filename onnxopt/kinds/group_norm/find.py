"""Regions of group norms in NHWC, with the elementwise nodes in front and behind.

    y = f(GroupNorm(g(x)), residual, one element a channel, one a channel of each sample, ...)

The kernel reads x once: the elements of a sample's groups stay in registers between their sums and their use, so that g
is computed twice for each element. Time embeddings are such a g: one sum a channel of each sample.
"""

from __future__ import annotations

import dataclasses
import heapq

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.operands import constant
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.group_norm.lower import inputs_of, lower
from onnxopt.kinds.group_norm.match import NORMS, Norm, norm
from onnxopt.kinds.group_norm.row_slices import cut_of
from onnxopt.program.group_norm import MAX_INPUTS

_NEAREST = 64  # readers of a region's values that one step looks at
_MOST_IN_FRONT = 16  # nodes


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every norm over groups that lies in NHWC. The others are for kernels of rows."""
    regions: list[Region] = []
    for node in list(context.order):
        if node.op_type not in NORMS or node.domain != "" or context.is_taken(node):
            continue
        found = norm(node, context.shapes, context.opsets.get("", 0))
        if isinstance(found, str) or any(context.is_taken(n) for n in found.nodes):
            continue
        growth = _Growth(context, kind, found)
        if not growth.fits(list(found.nodes)):
            continue
        region = growth.region()
        context.take([region.nodes])
        regions.append(region)
    return regions, []


@dataclasses.dataclass
class _Growth:
    """One region while it grows from a norm to its elementwise neighbours."""

    context: Context
    kind: Kind
    found: Norm

    def region(self) -> Region:
        """The region, with as many nodes behind and in front as fit."""
        behind = self._behind(list(self.found.nodes))
        nodes = self._with_cuts(self._in_order([*self._in_front(behind), *behind]))
        inputs, outputs = inputs_of(self.found, nodes, self.context.shapes), self.context.outputs_of(nodes)
        meaning = self.context.lowered(lower, nodes, inputs, outputs)
        own = [n for n in self.found.nodes if n.op_type in ("Transpose", "Shape")]  # the model had none of them
        moved = cost.of_region([n for n in nodes if n not in own], inputs, outputs, self.context.shapes)
        region = Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, self.kind, meaning)
        region.verify()
        return region

    def _with_cuts(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes and those that cut their operands off rows, as far as nothing else reads these."""
        inside = set(nodes)
        for value in inputs_of(self.found, nodes, self.context.shapes):
            cut = cut_of(value, self.context.shapes)
            if cut is None or value.is_graph_output() or not set(self.context.readers(value)) <= inside:
                continue
            trial = self._in_order([*nodes, *cut.nodes])
            if not any(map(self.context.is_taken, cut.nodes)) and self.fits(trial):
                nodes = trial
        return nodes

    def _in_order(self, nodes: list[ir.Node]) -> list[ir.Node]:
        return sorted(nodes, key=self.context.order.__getitem__)

    def _behind(self, start: list[ir.Node]) -> list[ir.Node]:
        """The nodes with their elementwise readers, as long as one value leaves them."""
        best, grown, refused = start, start, set[ir.Node]()
        while (node := self._reader(grown, refused)) is not None:
            trial = self._in_order([*grown, node])
            if len(trial) > cost.MAX_NODES or self.context.makes_cycle(trial):
                refused.add(node)
                continue
            if len(self.context.outputs_of(trial)) > 1:
                grown = trial  # until the other readers of its values have joined
            elif self.fits(trial):
                best = grown = trial
            else:
                refused.add(node)
        return best

    def _reader(self, nodes: list[ir.Node], refused: set[ir.Node]) -> ir.Node | None:
        """The first node that reads a value of the nodes and may join them."""
        inside = set(nodes)
        readers = {u for n in nodes for v in n.outputs for u in self.context.readers(v)}
        free = [n for n in readers if n in self.context.order and n not in inside and n not in refused]
        for node in heapq.nsmallest(_NEAREST, free, key=self.context.order.__getitem__):
            if self._is_free(node) and self.context.shapes.same(node.outputs[0], self.found.y):
                return node
        return None

    def _is_free(self, node: ir.Node) -> bool:
        context = self.context
        return eligibility.is_elementwise(node) and not context.is_taken(node) and context.why_not(node) is None

    def fits(self, nodes: list[ir.Node]) -> bool:
        """Whether the nodes can and should be one kernel."""
        nodes = self._in_order(nodes)
        inputs, outputs = inputs_of(self.found, nodes, self.context.shapes), self.context.outputs_of(nodes)
        if len(inputs) > MAX_INPUTS or len(outputs) != 1 or self.context.makes_cycle(nodes):
            return False
        try:
            meaning = self.context.lowered(lower, nodes, inputs, outputs)
        except ValueError:
            return False
        return meaning.cost <= cost.MAX_COST

    def _in_front(self, behind: list[ir.Node]) -> list[ir.Node]:
        """The nodes in front that read one tensor of x's shape, and that fit beside those behind."""
        nodes: list[ir.Node] = []
        best: list[ir.Node] = []
        inside = set(behind)
        while len(nodes) < _MOST_IN_FRONT:
            read = {v for n in nodes for v in n.inputs if v is not None} if nodes else {self.found.x}
            producers = {p for v in read if (p := v.producer()) is not None and p not in inside}
            ready = [p for p in producers if p in self.context.order and self._may_move(p, inside)]
            if not ready:
                break
            node = max(ready, key=self.context.order.__getitem__)
            inside.add(node)
            nodes.append(node)
            if self._reads_one_map(nodes) and self.fits([*nodes, *behind]):
                best = list(nodes)
        return best

    def _may_move(self, node: ir.Node, inside: set[ir.Node]) -> bool:
        """Whether a node in front is elementwise, keeps x's shape, and nothing but the region reads its result."""
        value = node.outputs[0]
        if value.is_graph_output() or not set(self.context.readers(value)) <= inside:
            return False
        return self._is_free(node) and self.context.shapes.same(value, self.found.x)

    def _reads_one_map(self, nodes: list[ir.Node]) -> bool:
        shapes, x = self.context.shapes, self.found.x
        made = {v for n in nodes for v in n.outputs}
        read = {v for n in nodes for v in n.inputs if v is not None and v not in made and constant(v) is None}
        whole = [v for v in read if shapes.same(v, x)]
        return len(whole) == 1 and shapes.dtype(whole[0]) == shapes.dtype(x)

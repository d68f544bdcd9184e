"""Depthwise regions: a depthwise convolution in NHWC with the elementwise nodes in front of it and behind it.

    y = f(DepthwiseConv(g(x)), residual, one element a channel, ...)

The kernel applies g to every input that it loads, and loads an input for each tile of outputs that sees it. So nodes in
front become part of the region only where that is predicted to take less time than a kernel of their own
(costs/depthwise.json).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.costs.depthwise import numbers
from onnxopt.fusion import cost
from onnxopt.fusion.behind import grow_behind, is_free
from onnxopt.fusion.channels_last import Sandwich
from onnxopt.fusion.context import Context
from onnxopt.fusion.operands import constant
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.depthwise import entry_points, expanded
from onnxopt.kinds.depthwise.lower import convolution, inputs_of, lower
from onnxopt.program.depthwise import MAX_INPUTS

_MOST_IN_FRONT = 16  # nodes
_NOMINAL = numbers().nominal_elements
# Operators whose kernels can end with bias and Relu.
_ENDS_WITH_RELU = frozenset({"Transpose", "MatMul", "Gemm"})
_FEWEST_ACTIVATED = numbers().min_activated_channels


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every depthwise convolution in NHWC, and refusals of the others."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if node.op_type != "Conv" or node.domain != "" or context.is_taken(node):
            continue
        found = convolution(node, context.shapes)
        if isinstance(found, str):
            if _has_groups_of_one(node, context):
                refusals.append(Refusal(node.name or "", node.op_type, "", found))
            continue
        if any(context.is_taken(n) for n in found.nodes):
            continue
        region = _Growth(context, kind, found).region()
        context.take([region.nodes])
        regions.append(region)
    return regions, refusals


def find_ahead(context: Context, kind: Kind) -> list[Region]:
    """A region for every depthwise convolution with a 1x1 convolution in front that it pays to compute with it."""
    regions: list[Region] = []
    for node in list(context.order):
        if node.op_type != "Conv" or node.domain != "" or context.is_taken(node):
            continue
        found = convolution(node, context.shapes)
        if isinstance(found, str) or any(map(context.is_taken, found.nodes)):
            continue
        region = _Growth(context, kind, found).expanded()
        if region is not None:
            context.take([region.nodes])
            regions.append(region)
    return regions


def _has_groups_of_one(node: ir.Node, context: Context) -> bool:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    dims = (context.shapes.dims(weight) if weight is not None else None) or ()
    group = node.attributes.get_int("group", 1)
    return len(dims) > 1 and group > 1 and dims[0] == group and dims[1] == 1


@dataclasses.dataclass
class _Growth:
    """One region while it grows from a convolution to its elementwise neighbours."""

    context: Context
    kind: Kind
    found: Sandwich
    wide: Sandwich | None = None  # the 1x1 convolution in front that the region has, too

    def region(self) -> Region:
        """The region, with as many nodes behind as fit, and those in front that pay."""
        behind = grow_behind(list(self.found.nodes), self.found.y, self.context, self._fits)
        nodes = [*self._in_front(), *behind]
        if len(nodes) > len(behind) and not self._fits(nodes):
            nodes = behind
        return self._of(nodes)

    def expanded(self) -> Region | None:
        """The region with a 1x1 convolution in front, None where there is none or it does not pay."""
        fronts = [[], *self._fronts()]
        source = self.found.x if len(fronts) == 1 else self._source(fronts[-1])
        wide = expanded.producer_of(source, self.found, fronts[-1], self.context)
        if wide is None:
            return None
        self.wide = wide
        start = self._in_order([*wide.nodes, *fronts[-1], *self.found.nodes])
        if not self._fits(start) or not self._pays_expanded(start):
            return None
        return self._of(grow_behind(start, self.found.y, self.context, self._fits))

    def _of(self, nodes: Sequence[ir.Node]) -> Region:
        nodes = self._in_order(nodes)
        inputs, outputs = inputs_of(self.found, nodes, self.wide), self.context.outputs_of(nodes)
        meaning = self.context.lowered(lower, nodes, inputs, outputs)
        moved = cost.of_region(nodes, inputs, outputs, self.context.shapes)
        region = Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, self.kind, meaning)
        region.verify()
        return region

    def _in_order(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        return sorted(nodes, key=self.context.order.__getitem__)

    def _is_free(self, node: ir.Node) -> bool:
        return is_free(node, self.context)

    def _fits(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether the nodes can and should be one kernel."""
        nodes = self._in_order(nodes)
        inputs, outputs = inputs_of(self.found, nodes, self.wide), self.context.outputs_of(nodes)
        if len(inputs) > MAX_INPUTS or len(outputs) != 1 or self.context.makes_cycle(nodes):
            return False
        try:
            meaning = self.context.lowered(lower, nodes, inputs, outputs)
        except ValueError:
            return False
        return meaning.cost <= cost.MAX_COST

    def _in_front(self) -> list[ir.Node]:
        """The nodes in front that cost less in this kernel than in one of their own."""
        best = max(self._fronts(), key=len, default=[])
        return best if best and self._pays(best) else []

    def _fronts(self) -> Iterator[list[ir.Node]]:
        """Nodes in front that are a function of one tensor, more and more of them."""
        context, x = self.context, self.found.x
        nodes: list[ir.Node] = []
        inside = set(self.found.nodes)
        while len(nodes) < _MOST_IN_FRONT:
            read = {v for n in nodes for v in n.inputs if v is not None} if nodes else {x}
            producers = {p for v in read if (p := v.producer()) is not None and p in context.order and p not in inside}
            ready = [p for p in producers if self._may_move(p, inside)]
            if not ready:
                break
            node = max(ready, key=context.order.__getitem__)
            inside.add(node)
            nodes.append(node)
            if self._source(nodes) is not None:
                yield list(nodes)

    def _may_move(self, node: ir.Node, inside: set[ir.Node]) -> bool:
        """Whether a node in front is elementwise, keeps x's shape, and nothing but the region reads its result."""
        value = node.outputs[0]
        if value.is_graph_output() or not set(self.context.readers(value)) <= inside:
            return False
        return self._is_free(node) and self.context.shapes.same(value, self.found.x)

    def _source(self, nodes: list[ir.Node]) -> ir.Value | None:
        """The one tensor of x's shape and dtype that the nodes read, None where they read others too."""
        shapes, x = self.context.shapes, self.found.x
        made = {v for n in nodes for v in n.outputs}
        read = {v for n in nodes for v in n.inputs if v is not None and v not in made and constant(v) is None}
        whole = [v for v in read if shapes.same(v, x) and shapes.dtype(v) == shapes.dtype(x)]
        vectors = [v for v in read if v not in whole]
        if len(whole) != 1 or any(v.const_value is None or v.is_graph_input() for v in vectors):
            return None
        return whole[0]

    def _pays(self, nodes: list[ir.Node]) -> bool:
        """Whether the nodes in front take less time in the convolution's kernel than in one of their own."""
        source = self._source(nodes)
        assert source is not None
        producer = source.producer()
        others = {n.op_type for n in nodes}
        if others <= {"Relu", "Add"} and producer is not None and producer.op_type in _ENDS_WITH_RELU:
            return False  # that producer's kernel applies it at no cost
        if producer is not None and self._is_activated(producer):
            return False
        together = self._in_order([*nodes, *self.found.nodes])
        inputs = inputs_of(self.found, together)
        try:
            meaning = self.context.lowered(lower, together, inputs, [self.found.y])
        except ValueError:
            return False
        if meaning.prologue is None:
            return False
        shapes, (down, across) = self.context.shapes, meaning.window.strides
        elements = shapes.elements(self.found.x) or _NOMINAL
        size = 2 if meaning.dtype != "float32" else 4
        dims = shapes.dims(self.found.y)
        width = dims[2] if dims is not None and isinstance(dims[2], int) else None
        outputs = shapes.elements(self.found.y) or elements // (down * across)
        inside = entry_points.microseconds_in_front(meaning, meaning.prologue.program.cost, outputs, width)
        return inside < entry_points.microseconds_of_pass(2 * elements * size)

    def _pays_expanded(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether the 1x1 convolution takes less time in this kernel than its result takes to be stored and read."""
        outputs = self.context.outputs_of(nodes)
        meaning = self.context.lowered(lower, nodes, inputs_of(self.found, nodes, self.wide), outputs)
        dims = (self.context.shapes.usual(self.found.x) or ())[:3]
        return expanded.pays(meaning, dims)

    def _is_activated(self, node: ir.Node) -> bool:
        """Whether a node ends a convolution whose own kernel applies what follows."""
        conv = node.inputs[0].producer() if node.op_type == "Transpose" and node.inputs[0] is not None else None
        weight = conv.inputs[1] if conv is not None and conv.op_type == "Conv" else None
        dims = self.context.shapes.dims(weight) if weight is not None else None
        return dims is not None and isinstance(dims[1], int) and dims[1] >= _FEWEST_ACTIVATED

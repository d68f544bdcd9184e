"""Regions of cores: an operator with the elementwise nodes downstream of it, its epilogue, and upstream, its prologue.

A kind (`CoreKind`) says which nodes its cores are around, how they are recognised, and where a prologue pays; the
search, the growth and the lowering are the same for all of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.core_lowering import CoreLowering, CoreMatch, read_outside
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.match import is_constant
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.schema import Variant

_NEAREST = 64  # readers of a region's values that one step looks at
_MAX_PROLOGUE = 16  # nodes
_VIEWS = frozenset({"Transpose", "Reshape", "Shape", "Pad"})  # of the layout pass


class CoreKind(CoreLowering, Kind):
    """A kind whose kernels are one operator with a prologue and an epilogue.

    epilogue_first: which of the two grows first, and so takes the inputs that there are.
    whole_prologue: a prologue that is not all nodes upstream leaves a kernel for the others, and saves none.
    constant_prologue: its operands are constants. prologue_inputs: dtypes that it may read; none for x's own.
    max_prologue_cost: of its program, in float32 instructions.
    """

    epilogue_first: ClassVar[bool] = True
    whole_prologue: ClassVar[bool] = False
    constant_prologue: ClassVar[bool] = False
    prologue_inputs: ClassVar[tuple[str, ...]] = ()
    max_prologue_cost: ClassVar[float] = math.inf

    def prologue_pays(self, match: CoreMatch, nodes: Sequence[ir.Node], source: ir.Value, context: Context) -> bool:
        """Whether nodes that compute x from `source` take less time in the core's kernel than in one of their own."""
        return True

    def with_prologue(
        self, match: CoreMatch, nodes: list[ir.Node], source: ir.Value, context: Context
    ) -> tuple[CoreMatch, list[ir.Node]]:
        """The match and the prologue's nodes where these are part of a region, which read `source`."""
        return match, nodes

    def refuses(self, node: ir.Node, shapes: Shapes) -> bool:
        """Whether a user reads why no kernel of this kind runs a node. Other nodes are of other kinds, too."""
        return False

    # --- a kind ---

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        """A region for every core that a kernel can run, and refusals of others."""
        regions: list[Region] = []
        refusals: list[Refusal] = []
        for node in list(context.order):
            if not self.is_core(node) or context.is_owned(node):
                continue
            match = self.match(node, context.opsets, context.shapes)
            if isinstance(match, str):
                if self.refuses(node, context.shapes):
                    refusals.append(Refusal(node.name or "", node.op_type, "", match))
                continue
            region = None if any(map(context.is_owned, match.nodes)) else Growth(context, self, match).region()
            if region is not None:
                context.take([region.nodes])
                regions.append(region)
        return regions, refusals

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return self.lower_nodes(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type not in _VIEWS]

    def others(self, kernel: Kernel) -> Iterable[Variant]:
        """Further entry points for `tune`, perhaps some that the kernel has."""
        return ()

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        symbols = {variant.symbol for variant in kernel.variants}
        return [variant for variant in self.others(kernel) if variant.symbol not in symbols]


class Growth:
    """One region while it grows from a core to its elementwise neighbours."""

    def __init__(self, context: Context, kind: CoreKind, match: CoreMatch) -> None:
        self.context, self.kind, self.match = context, kind, match

    def region(self) -> Region | None:
        """The region with as many nodes as fit and pay; None where the core alone does not fit."""
        nodes = self.in_order(self.match.nodes)
        if not self.fits(nodes):
            return None
        if self.kind.has_transforms:
            steps = (self.with_epilogue, self.with_prologue)
            for step in steps if self.kind.epilogue_first else reversed(steps):
                nodes = step(nodes)
        return self.region_of(self._with_row_slices(nodes))

    def region_of(self, nodes: Sequence[ir.Node]) -> Region:
        """The region of nodes that fit."""
        nodes, inputs, outputs = self._edges(nodes)
        meaning = self.context.lowered(self.kind.lower_nodes, nodes, inputs, outputs)
        counted = [n for n in nodes if n not in self.match.layout]
        moved = cost.region_traffic(counted, inputs, outputs, self.context.shapes)
        region = Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, self.kind, meaning)
        region.verify()
        return region

    def fits(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether the nodes can and should be one kernel."""
        nodes, inputs, outputs = self._edges(nodes)
        if len(inputs) > self.kind.meaning.INPUTS[1] or len(outputs) != 1 or self.context.makes_cycle(nodes):
            return False
        try:
            meaning = self.context.lowered(self.kind.lower_nodes, nodes, inputs, outputs)
        except ValueError:
            return False
        prologue = getattr(meaning, "prologue", None)
        prologue_cost = prologue.program.cost if prologue is not None else 0
        total: int = getattr(meaning, "cost", 0)
        return total <= cost.MAX_COST and prologue_cost <= self.kind.max_prologue_cost

    def with_epilogue(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes with as many elementwise nodes downstream as fit."""
        return grow_downstream(nodes, self.match.y, self.context, self.fits)

    def with_prologue(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes with the most nodes upstream that fit and pay."""
        prologues = list(self.prologues())
        alone = self.match
        for upstream, source in prologues[-1:] if self.kind.whole_prologue else reversed(prologues):
            if not self.kind.prologue_pays(alone, upstream, source, self.context):
                continue
            self.match, upstream = self.kind.with_prologue(alone, upstream, source, self.context)
            if self.fits([*upstream, *nodes]):
                return self.in_order([*upstream, *nodes])
            self.match = alone
        return nodes

    def prologues(self) -> Iterator[tuple[list[ir.Node], ir.Value]]:
        """Nodes upstream that compute x from one tensor of its shape, more and more of them, and that tensor."""
        context, nodes, inside = self.context, list[ir.Node](), set(self.match.nodes)
        while len(nodes) < _MAX_PROLOGUE:
            read = {v for n in nodes for v in n.inputs if v is not None} if nodes else {self.match.x}
            producers = {p for v in read if (p := v.producer()) is not None and p in context.order and p not in inside}
            ready = [p for p in producers if self._may_move(p, inside)]
            if not ready:
                return
            node = max(ready, key=context.order.__getitem__)
            inside.add(node)
            nodes.append(node)
            source = self._source(nodes)
            if source is not None:
                yield list(nodes), source

    def in_order(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return sorted(nodes, key=self.context.order.__getitem__)

    def _edges(self, nodes: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Value], list[ir.Value]]:
        nodes = self.in_order(nodes)
        return nodes, self.kind.inputs_of(self.match, nodes, self.context.shapes), self.context.outputs_of(nodes)

    def _may_move(self, node: ir.Node, inside: set[ir.Node]) -> bool:
        """Whether a node is elementwise, keeps x's shape, and nothing but the region reads its result."""
        value = node.outputs[0]
        if value.is_graph_output() or not set(self.context.readers(value)) <= inside:
            return False
        return is_free(node, self.context) and self.context.shapes.same(value, self.match.x)

    def _source(self, nodes: Sequence[ir.Node]) -> ir.Value | None:
        """The one tensor of x's shape that the nodes read, None where the kernel cannot read what they do."""
        shapes, x, read = self.context.shapes, self.match.x, read_outside(nodes)
        whole = [v for v in read if shapes.same(v, x)]
        if len(whole) != 1 or (self.kind.constant_prologue and not all(is_constant(v) for v in read if v not in whole)):
            return None
        dtype, own = shapes.dtype(whole[0]), shapes.dtype(x)
        names = self.kind.prologue_inputs
        fits = dtype == own if not names else dtype is not None and dtype.name in names
        return whole[0] if fits else None

    def _with_row_slices(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes and those that slice their operands off rows, as far as nothing else reads these."""
        inside, shapes = set(nodes), self.context.shapes
        for value in self.kind.inputs_of(self.match, nodes, shapes):
            part = self.kind.row_slice(value, shapes)
            if part is None or value.is_graph_output() or not set(self.context.readers(value)) <= inside:
                continue
            trial = self.in_order([*nodes, *part.nodes])
            if not any(map(self.context.is_owned, part.nodes)) and self.fits(trial):
                nodes = trial
        return nodes


def grow_downstream(
    start: list[ir.Node], y: ir.Value, context: Context, fits: Callable[[Sequence[ir.Node]], bool]
) -> list[ir.Node]:
    """The nodes `start`, which compute y, with as many elementwise readers of y's shape as fit, in topological order,
    as long as one value leaves them.

    fits: whether nodes can and should be one kernel.
    """
    best, grown, refused = start, start, set[ir.Node]()
    while (node := _reader(grown, refused, y, context)) is not None:
        trial = sorted([*grown, node], key=context.order.__getitem__)
        if len(trial) > cost.MAX_NODES or context.makes_cycle(trial):
            refused.add(node)
            continue
        if len(context.outputs_of(trial)) > 1:
            grown = trial  # until the other readers of its values have joined
        elif fits(trial):
            best = grown = trial
        else:
            refused.add(node)
    return best


def is_free(node: ir.Node, context: Context) -> bool:
    """Whether a node is elementwise, and no region has it."""
    return eligibility.is_elementwise(node) and not context.is_owned(node) and context.why_not(node) is None


def _reader(nodes: list[ir.Node], refused: set[ir.Node], y: ir.Value, context: Context) -> ir.Node | None:
    """The first node that reads a value of the nodes and may join them."""
    inside = set(nodes)
    readers = {u for n in nodes for v in n.outputs for u in context.readers(v)}
    free = [n for n in readers if n in context.order and n not in inside and n not in refused]
    for node in heapq.nsmallest(_NEAREST, free, key=context.order.__getitem__):
        if is_free(node, context) and context.shapes.same(node.outputs[0], y):
            return node
    return None

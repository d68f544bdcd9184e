"""Joining rowwise regions with the index operations around them, and with the pointwise regions that have some.

It comes after every kind has found its regions: the index operations beside a norm are by then parts of pointwise
regions (a rotary embedding, parts of a Split that are multiplied) or stand alone (a Transpose to heads). Such a
neighbour becomes part of the rowwise kernel where that lowers, moves fewer bytes, and reads memory in its order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.fusion import boundary, cost, eligibility, index_ops
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.pointwise.kind import POINTWISE
from onnxopt.kinds.pointwise.lower import lower as lower_pointwise
from onnxopt.kinds.rowwise import access_order, grid
from onnxopt.kinds.rowwise.lower import lower
from onnxopt.program.extents import product
from onnxopt.program.pointwise import Program
from onnxopt.program.rowwise import RowProgram

_MOST_REPEATED = 8  # times that a row is reduced


@dataclasses.dataclass(frozen=True)
class _Neighbour:
    """Nodes beside a rowwise region: those of other regions, or single ones. views: reshapes that lie between."""

    nodes: tuple[ir.Node, ...]
    views: tuple[ir.Node, ...]
    regions: tuple[Region, ...] = ()


def join(context: Context, kind: Kind, regions: Sequence[Region]) -> tuple[list[Region], list[Refusal]]:
    """The regions after joining, and why index operations beside rowwise regions stay apart. kind: the rowwise one."""
    joiner = _Joiner(context, kind, regions)
    for region in [r for r in regions if r.kind is kind]:
        joiner.grow(region)
    return joiner.regions, list(joiner.refusals.values())


class _Joiner:
    """The regions of one graph while they are joined."""

    def __init__(self, context: Context, kind: Kind, regions: Sequence[Region]):
        self._context, self._kind = context, kind
        self.regions = list(regions)
        self.refusals: dict[ir.Node, Refusal] = {}
        self._of = {n: r for r in regions for n in r.nodes}

    def grow(self, region: Region) -> None:
        """Join one rowwise region with whatever neighbour it can be, until there is none left."""
        refused: set[tuple[ir.Node, ...]] = set()
        while True:
            for neighbour in self._candidates(region):
                if neighbour.nodes in refused:
                    continue
                union = self._union(region, neighbour)
                if isinstance(union, Region):
                    break
                refused.add(neighbour.nodes)
                if any(index_ops.is_index(n) for n in neighbour.nodes):
                    node, other = neighbour.nodes[0], region.nodes[-1]
                    refusal = Refusal(node.name or "", node.op_type, other.name or "", union)
                    self.refusals.setdefault(node, refusal)
            else:
                return
            for node in neighbour.nodes:
                self.refusals.pop(node, None)
            for part in (region, *neighbour.regions):
                self.regions.remove(part)
            self.regions.append(union)
            self._of.update(dict.fromkeys(union.nodes, union))
            self._context.take([union.nodes])
            region = union

    def _candidates(self, region: Region) -> Iterator[_Neighbour]:
        yield from self._readers(region)
        yield from self._producers(region)

    def _readers(self, region: Region) -> Iterator[_Neighbour]:
        for value in region.outputs:
            for reader in list(value.consumers()):
                yield from self._behind(reader, ())

    def _producers(self, region: Region) -> Iterator[_Neighbour]:
        for value in region.inputs:
            views: tuple[ir.Node, ...] = ()
            producer = value.producer()
            while producer is not None and self._is_free(producer) and index_ops.is_view(producer):
                views = (*views, producer)
                producer = None if producer.inputs[0] is None else producer.inputs[0].producer()
            if producer is not None:
                yield from self._as_neighbour(producer, views)

    def _behind(self, reader: ir.Node, views: tuple[ir.Node, ...]) -> Iterator[_Neighbour]:
        if self._is_free(reader) and index_ops.is_view(reader):
            for further in list(reader.outputs[0].consumers()):
                yield from self._behind(further, (*views, reader))
        else:
            yield from self._as_neighbour(reader, views)

    def _as_neighbour(self, node: ir.Node, views: tuple[ir.Node, ...]) -> Iterator[_Neighbour]:
        region = self._of.get(node)
        if region is not None and region.kind is POINTWISE:
            yield _Neighbour(region.nodes, views, (region,))
        elif self._is_free(node) and self._is_movable(node):
            yield _Neighbour((node,), views)

    def _is_free(self, node: ir.Node) -> bool:
        return node in self._context.order and not self._context.is_taken(node)

    def _is_movable(self, node: ir.Node) -> bool:
        if not index_ops.is_index(node) and not eligibility.is_elementwise(node):
            return False
        context = self._context
        return eligibility.why_not(node, context.opsets, context.shapes, context.host) is None

    def _union(self, region: Region, neighbour: _Neighbour) -> Region | str:
        """The joined region, or why there is none."""
        context, shapes = self._context, self._context.shapes
        nodes = sorted({*region.nodes, *neighbour.views, *neighbour.nodes}, key=context.order.__getitem__)
        inputs, outputs = self._inputs(nodes), boundary.outputs_of(nodes)
        if len(inputs) + len(outputs) > cost.MAX_OPERANDS or len(nodes) > cost.MAX_NODES:
            return f"one kernel would have {len(inputs) + len(outputs)} operands and run {len(nodes)} operators"
        if any(v in outputs for n in neighbour.views for v in n.outputs):
            return "a reshape between them is needed elsewhere"
        if context.spills(nodes):
            return f"one kernel would run {len(nodes)} operators, which spilled registers when it was compiled"
        if context.makes_cycle(nodes):
            return "one kernel would wait for itself"
        try:
            program = context.lowered(lower, nodes, inputs, outputs)
        except ValueError as error:
            return f"as one kernel, {error}"
        if program.cost > cost.MAX_COST:
            return "it would need too many registers"
        obstacle = _obstacle(program)
        if obstacle is not None:
            return obstacle
        if self._is_repeated(program, region):
            return "rows would be reduced again wherever they are broadcast to"
        together = cost.moved(program, inputs, outputs, shapes)
        apart = [self._moved(region), *self._moved_by(neighbour)]
        if together is not None and None not in apart and together >= sum(b for b in apart if b is not None):
            return f"one kernel would move {together} bytes, apart they move {sum(b for b in apart if b)}"
        union = Region(
            tuple(nodes),
            tuple(inputs),
            tuple(outputs),
            cost.of_region(nodes, inputs, outputs, shapes),
            self._kind,
            program,
        )
        union.verify()
        return union

    def _is_repeated(self, program: RowProgram, region: Region) -> bool:
        """Whether the kernel would reduce more rows than there are, more often than costs little: as often as the
        heads of a group share a key, rows come from the cache."""
        node = next(n for n in region.nodes if grid.operator(n, self._context.opsets) is not None)
        whole = product(program.domain)
        rows = product(index_ops.dims_of(grid.values_read(node, self._context.opsets)[0], self._context.shapes))
        times = whole.over(rows)
        return not whole.at_most(rows) and (times is None or times.number is None or times.number > _MOST_REPEATED)

    def _inputs(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """Values read from outside; axes and shapes are left out."""
        return boundary.inputs_of(nodes, lambda node: grid.values_read(node, self._context.opsets))

    def _moved(self, region: Region) -> int | None:
        context = self._context
        program = region.meaning
        if not isinstance(program, (Program, RowProgram)):  # a pointwise region without index operations
            program = context.lowered(lower_pointwise, region.nodes, region.inputs, region.outputs)
        return cost.moved(program, region.inputs, region.outputs, context.shapes)

    def _moved_by(self, neighbour: _Neighbour) -> Iterator[int | None]:
        for region in neighbour.regions:
            yield self._moved(region)
        single = [n for n in neighbour.nodes if n not in self._of]
        yield cost.of_region(single, (), (), self._context.shapes).bytes_before


def _obstacle(program: RowProgram) -> str | None:
    """Why one kernel would not read its inputs as fast as several kernels do, or None."""
    if program.index is None:
        return None
    if access_order.reads_across(program.index, program.inputs, program.domain[1]):
        return "an input would be read across the order in which it lies in memory"
    if access_order.cuts_vectors(program):
        return "a part of a row would begin or end inside a vector"
    return None

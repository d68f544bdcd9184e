"""Joining rowwise regions with neighbouring index operations, and with pointwise regions that have index operations.

The join runs after every kind has found its regions. The index operations beside a norm are then part of pointwise
regions (a rotary embedding, the parts of a Split that are multiplied) or alone (a Transpose to heads). A neighbour is
joined where the union can be lowered, moves no more bytes, which saves a launch, and reads its inputs in memory order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxopt.costs.rowwise import numbers
from onnxopt.fusion import boundary, cost, eligibility, index_ops
from onnxopt.fusion.context import Context
from onnxopt.fusion.multiples import with_multiples
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.kind import POINTWISE
from onnxopt.kinds.pointwise.lower import lower as lower_pointwise
from onnxopt.kinds.rowwise import access_order, grid
from onnxopt.kinds.rowwise.lower import lower
from onnxopt.program.extents import ZERO, product, total
from onnxopt.program.pointwise import Program
from onnxopt.program.rowwise import RowProgram

_MAX_REPEATED = numbers().max_repeated


@dataclasses.dataclass(frozen=True)
class _Neighbour:
    """Nodes beside a rowwise region: the nodes of another region, or one node. views: views between the two."""

    nodes: tuple[ir.Node, ...]
    views: tuple[ir.Node, ...]
    regions: tuple[Region, ...] = ()


def merge(context: Context, kind: Kind, regions: Sequence[Region]) -> tuple[list[Region], list[Refusal]]:
    """The regions after joining, and refusals of index operations beside rowwise regions. kind: the rowwise kind."""
    joiner = _Joiner(context, kind, regions)
    joiner.grow_all(joiner.neighbours)
    return list(joiner.regions.values()), list(joiner.refusals.values())


def take_parts(context: Context, kind: Kind, region: Region) -> Region:
    """The region with the Slices that it alone reads and broadcasts, where the kernel can read the parts in place."""
    joiner = _Joiner(context, kind, [region])
    joiner.grow(region, joiner.parts)
    return next(iter(joiner.regions.values()))


def join_rows(context: Context, kind: Kind, regions: Sequence[Region]) -> list[Region]:
    """The regions, those joined whose results Concats join, before pointwise regions take the Concats."""
    joiner = _Joiner(context, kind, regions)
    joiner.grow_all(joiner.concats)
    return list(joiner.regions.values())


class _Joiner:
    """The regions of one graph while they are joined."""

    def __init__(self, context: Context, kind: Kind, regions: Sequence[Region]):
        self._context, self._kind = context, kind
        self.regions = {id(region): region for region in regions}
        self.refusals: dict[ir.Node, Refusal] = {}
        self._of = {n: r for r in regions for n in r.nodes}

    def grow_all(self, candidates: Callable[[Region], Iterator[_Neighbour]]) -> None:
        """Join every rowwise region that no other has taken in by then."""
        for region in [r for r in self.regions.values() if r.kind is self._kind]:
            if id(region) in self.regions:
                self.grow(region, candidates)

    def grow(self, region: Region, candidates: Callable[[Region], Iterator[_Neighbour]]) -> None:
        """Join one rowwise region with its neighbours until none of the candidates fits."""
        refused: set[tuple[ir.Node, ...]] = set()
        while True:
            for neighbour in candidates(region):
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
                del self.regions[id(part)]
            self.regions[id(union)] = union
            self._of.update(dict.fromkeys(union.nodes, union))
            self._context.take([union.nodes])
            region = union

    def neighbours(self, region: Region) -> Iterator[_Neighbour]:
        yield from self.concats(region)
        yield from self._readers(region)
        yield from self._producers(region)
        yield from self._siblings(region)

    def parts(self, region: Region) -> Iterator[_Neighbour]:
        """Slices, maybe with views after them, that this region alone reads.

        It repeats them for its rows, or a Concat joins its results with others, so that parts differ in their readers.
        """
        joined = any(self._is_joining(reader) for value in region.outputs for reader in self._context.readers(value))
        for neighbour in self._producers(region):
            (node, *more), nodes = neighbour.nodes, {*neighbour.nodes, *neighbour.views, *region.nodes}
            results = [node.outputs[0], *(view.outputs[0] for view in neighbour.views)]
            if more or node.op_type != "Slice":
                continue
            if not joined and not cost.grows(results[0], region.outputs[0], self._context.shapes):
                continue
            if all(not v.is_graph_output() and nodes.issuperset(self._context.readers(v)) for v in results):
                yield neighbour

    def concats(self, region: Region) -> Iterator[_Neighbour]:
        """Concats of the region's result and results of other rowwise regions, together with these regions."""
        for reader in (r for value in region.outputs for r in self._context.readers(value) if self._is_joining(r)):
            for neighbour in self._as_neighbour(reader, ()):
                others = {id(r): r for v in reader.inputs if (r := self._producing(v)) is not None and r is not region}
                nodes = tuple(node for other in others.values() for node in other.nodes)
                if others:
                    yield _Neighbour((*neighbour.nodes, *nodes), (), (*neighbour.regions, *others.values()))

    def _siblings(self, region: Region) -> Iterator[_Neighbour]:
        """Other regions that join rows of the same tensors by Concats: those of keys and values beside queries."""
        if any(map(self._is_joining, region.nodes)):
            readers = (self._of.get(r) for value in region.inputs for r in self._context.readers(value))
            for other in {id(r): r for r in readers if r is not None and r is not region}.values():
                if any(map(self._is_joining, other.nodes)) and other.kind in (self._kind, POINTWISE):
                    yield _Neighbour(other.nodes, (), (other,))

    def _is_joining(self, node: ir.Node) -> bool:
        """Whether a node joins rows, and not what is in them."""
        dims = self._context.shapes.dims(node.outputs[0])
        is_concat = (node.domain, node.op_type) == ("", "Concat") and dims is not None
        return is_concat and node.attributes.get_int("axis", 0) not in (-1, len(dims or ()) - 1)

    def _producing(self, value: ir.Value | None) -> Region | None:
        """The rowwise region that computes a value."""
        node = None if value is None else value.producer()
        region = None if node is None else self._of.get(node)
        return region if region is not None and region.kind is self._kind else None

    def _readers(self, region: Region) -> Iterator[_Neighbour]:
        for value in region.outputs:
            for reader in self._context.readers(value):
                yield from self._downstream(reader, ())

    def _producers(self, region: Region) -> Iterator[_Neighbour]:
        for value in region.inputs:
            views: tuple[ir.Node, ...] = ()
            producer = value.producer()
            while producer is not None and self._is_free(producer) and index_ops.is_view(producer):
                views = (*views, producer)
                producer = None if producer.inputs[0] is None else producer.inputs[0].producer()
            if producer is not None:
                yield from self._as_neighbour(producer, views)

    def _downstream(self, reader: ir.Node, views: tuple[ir.Node, ...]) -> Iterator[_Neighbour]:
        if self._is_free(reader) and index_ops.is_view(reader):
            for further in self._context.readers(reader.outputs[0]):
                yield from self._downstream(further, (*views, reader))
        else:
            yield from self._as_neighbour(reader, views)

    def _as_neighbour(self, node: ir.Node, views: tuple[ir.Node, ...]) -> Iterator[_Neighbour]:
        region = self._of.get(node)
        if region is not None and region.kind is POINTWISE:
            yield _Neighbour(region.nodes, views, (region,))
        elif self._is_free(node) and self._is_movable(node):
            yield _Neighbour((node,), views)

    def _is_free(self, node: ir.Node) -> bool:
        return node in self._context.order and not self._context.is_owned(node)

    def _is_movable(self, node: ir.Node) -> bool:
        if not index_ops.is_index(node) and not eligibility.is_elementwise(node):
            return False
        return self._context.why_not(node) is None

    def _union(self, region: Region, neighbour: _Neighbour) -> Region | str:
        """The joined region, or the reason why there is none."""
        context, shapes = self._context, self._context.shapes
        nodes = sorted({*region.nodes, *neighbour.views, *neighbour.nodes}, key=context.order.__getitem__)
        inputs, outputs = self._inputs(nodes), context.outputs_of(nodes)
        if len(inputs) + len(outputs) > cost.MAX_OPERANDS or len(nodes) > cost.MAX_NODES:
            size = f"{len(inputs) + len(outputs)} tensors and {len(nodes)} operators"
            return f"The fused kernel would have {size}; the limits are {cost.MAX_OPERANDS} and {cost.MAX_NODES}"
        for view in neighbour.views:
            if index_ops.reads_computed_parameters(view):
                return f"The axes or the shape of the {view.op_type} `{view.name}` are computed at run time"
            # The kernel may write the view instead of what it is of, but not a second copy.
            if view.outputs[0] in outputs and (view.inputs[0] in outputs or view.inputs[0] in inputs):
                return f"The result of the {view.op_type} `{view.name}` and what it is of are both read elsewhere too"
        if context.spills(nodes):
            return f"The fused kernel of {len(nodes)} operators spilled registers when it was compiled"
        if context.makes_cycle(nodes):
            return "Fusing would make a cycle through a node outside the kernel"
        try:
            program = context.lowered(lower, nodes, inputs, outputs)
        except ValueError as error:
            computed = next((view for view in neighbour.views if index_ops.is_shape_of_dims(view)), None)
            where = "" if computed is None else f"The shape of the Reshape `{computed.name}` is computed at run time: "
            return f"{where}{error}"
        if program.cost > cost.MAX_COST:
            return "The fused kernel would need too many registers"
        obstacle = _obstacle(program, inputs) or self._repetition(program, nodes, with_multiples(nodes, inputs, shapes))
        if obstacle is not None:
            return obstacle
        together = cost.moved(program, inputs, outputs, shapes)
        apart = [self._moved(region), *self._moved_by(neighbour)]
        if together is not None and None not in apart and together > sum(b for b in apart if b is not None):
            return (
                f"The fused kernel would move {together} bytes; the separate kernels move {sum(b for b in apart if b)}"
            )
        union = Region(
            tuple(nodes),
            tuple(inputs),
            tuple(outputs),
            cost.region_traffic(nodes, inputs, outputs, shapes),
            self._kind,
            program,
        )
        union.verify()
        return union

    def _repetition(self, program: RowProgram, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
        """The reason to refuse a kernel that would reduce every row more than _MAX_REPEATED times, else None.

        shapes: dims as the kernel counts them.
        Up to that limit, as where the heads of a group share a key, the repeated reads hit the cache.
        """
        opsets = self._context.opsets
        reducing = [n for n in nodes if grid.operator(n, opsets) is not None]
        rows = [product(index_ops.dims_of(grid.values_read(n, opsets)[0], shapes)) for n in reducing]
        whole = product(program.domain)
        if any(map(self._is_joining, nodes)) and (sum(map(total, rows), ZERO) - whole).not_negative():
            return None
        times = whole.over(rows[0])
        number = None if times is None else times.number
        if whole.at_most(rows[0]) or (number is not None and number <= _MAX_REPEATED):
            return None
        return (
            "Each row would be reduced again for every place it is broadcast to"
            f" ({'an unknown number of' if number is None else number} times; the limit is {_MAX_REPEATED})"
        )

    def _inputs(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """Values read from outside, without axes and shapes."""
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
        yield cost.region_traffic(single, (), (), self._context.shapes).bytes_before


def _obstacle(program: RowProgram, inputs: Sequence[ir.Value]) -> str | None:
    """Why the fused kernel would not read its inputs as fast as several kernels do, or None."""
    if program.index is None:
        return None
    across = access_order.input_read_across(program.index, program.inputs, program.domain[1])
    if across is not None:
        return (
            f"The fused kernel would read `{inputs[across].name}` against its memory layout and use little of each"
            " memory transaction"
        )
    if access_order.splits_vectors(program):
        return "A part of a Concat or Pad would begin or end inside a 16-byte vector, which makes loads slow"
    return None

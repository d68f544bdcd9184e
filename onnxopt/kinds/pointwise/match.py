"""Pointwise regions: groups of elementwise and index nodes, and a reason for every pair of such nodes not fused.

Nodes are visited in topological order. Each node starts a group, which is merged with the groups that produce its
operands unless `_Growth.union` gives a reason against the merge. Refused merges are tried again after the groups
have grown. Views (Reshape, Squeeze, ...) cost nothing in ONNX Runtime, so a view belongs to a group only between two
nodes of the group. The graph whose vertices are the groups has no cycle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxopt.fusion import boundary, cost, eligibility, index_ops, integer_kernels
from onnxopt.fusion.context import Context
from onnxopt.fusion.depths import depths
from onnxopt.fusion.index_maps import NotAffine
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.group import Group, is_slow_alone, may_fit, takes_part
from onnxopt.kinds.pointwise.lower import lower
from onnxopt.program.extents import product
from onnxopt.program.pointwise import Program

_ROUNDS = 3  # of further merges; on real models the second round changes nothing
# Limits that keep the search linear in graphs of thousands of like nodes; no model comes near them.
_COMPARED = 64  # groups behind a group, among those that read one tensor, that the group is compared with
_REFUSED = 16  # merges of one group that are refused in turn before it is left alone
_MAX_VIEWS = cost.MAX_NODES  # between two groups
_TOO_MANY_INPUTS = 8 * cost.MAX_OPERANDS  # of one group, to look into merging it


def _reader(group: Group, value: ir.Value) -> str:
    """The operator of the group that reads a value."""
    return next((n for n in group.nodes if value in n.inputs), group.nodes[-1]).op_type


def _producer(group: Group, value: ir.Value) -> str:
    """The operator of the group that a value comes from, through views where the group does not compute the value."""
    producer = value.producer()
    return producer.op_type if producer is not None and producer in group.nodes else group.nodes[-1].op_type


def _recomputed(producer: Group, value: ir.Value) -> str:
    return (
        f"{_producer(producer, value)} would be recomputed for every element that `{value.name}` is broadcast to, which"
        " costs more than it saves"
    )


def _shape_text(value: ir.Value, shapes: Shapes) -> str:
    dims = shapes.dims(value)
    return "of unknown rank" if dims is None else "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """Regions of nodes that no other kind has taken, and the refusals."""
    growth = _Growth(context, kind)
    growth.grow()
    return growth.regions(), growth.refusals()


class _Growth:
    """The growing of groups in one graph."""

    def __init__(self, context: Context, kind: Kind):
        self._context, self._kind = context, kind
        self._opsets, self._shapes = context.opsets, context.shapes
        self._order = context.order
        self._unfit: dict[ir.Node, str] = {}
        self._groups: dict[ir.Node, Group] = {}
        self._separate: dict[tuple[ir.Node, ir.Node], str] = {}
        self._noted: set[tuple[ir.Node, ir.Value]] = set()  # producers and values whose readers are all in _kept_apart

    def grow(self) -> None:
        """Start a group with every node, and merge groups until no merge is left."""
        for node in self._order:
            if not self._is_open(node) or index_ops.is_view(node):
                continue
            reason = self._context.why_not(node)
            try:
                group = self._first(node)
                group.cost = self._lowered(group).cost if reason is None else 0
            except NotAffine as error:
                reason = f"{node.op_type} cannot become index arithmetic: {error}"
            except ValueError as error:  # the operator does not allow these attributes for this dtype
                reason = f"{node.op_type} cannot be compiled into a kernel: {error}"
            if reason is not None:
                self._unfit[node] = reason
                continue
            self._groups |= dict.fromkeys(group.nodes, group)
            if len(group.nodes) > 1:
                self._context.contract(group.nodes)
            self._take_in_producers(group, node)
        self._try_again()
        self._fuse_siblings()
        self._fuse_tiny()

    def _first(self, node: ir.Node) -> Group:
        """A group of one node, without its cost; of a roll with the Slices whose lengths no kernel alone can tell."""
        slices = [s for s in index_ops.rolled(node) if s in self._unfit and self._is_open(s)]
        nodes = [*slices, node]
        if any(self._is_read_outside(s.outputs[0], set(nodes)) for s in slices):
            nodes = [node]
        for part in nodes:
            self._unfit.pop(part, None)
        reads, writes = boundary.inputs_of(nodes, index_ops.data_inputs), self._context.outputs_of(nodes)
        return Group(self._context, nodes, node.outputs[0], 0, reads, writes, index_ops.is_index(node))

    def _lowered(self, group: Group) -> Program:
        """The program of a group. ValueError where there is none."""
        return self._context.lowered(lower, group.nodes, group.inputs, group.outputs)

    def _try_again(self) -> None:
        """Try refused merges again: all readers of a value may be in one group by now."""
        for _ in range(_ROUNDS):
            grown = False
            for group in list(dict.fromkeys(self._groups.values())):
                if self._groups[group.nodes[0]] is group:
                    grown |= self._take_in_producers(group, group.nodes[-1])
            if not grown:
                return

    def _fuse_siblings(self) -> None:
        """Merge groups that read the same tensor into one kernel with several outputs, which reads the tensor once.

        The groups read the tensor element by element, or each group reads a part and all outputs have the same size.
        """
        readers: dict[ir.Value, list[ir.Node]] = {}
        for group in dict.fromkeys(self._groups.values()):
            if len(group.reads) > _TOO_MANY_INPUTS:
                continue
            for value in group.inputs:
                if self._shapes.same(value, group.domain) or takes_part(group, value):
                    readers.setdefault(value, []).append(group.nodes[-1])
        for value, nodes in readers.items():
            siblings = [n for n in nodes if not self._groups[n].runs_in_runtime]
            self._fuse_pairs(siblings, value, functools.partial(self._are_siblings, value))

    def _are_siblings(self, value: ir.Value, first: Group, second: Group) -> bool:
        """Whether two groups that read a value have domains that one kernel can have."""
        parts = takes_part(first, value) and takes_part(second, value)
        same = self._same_size if parts else self._shapes.same
        return same(first.domain, second.domain) and not (first.runs_in_runtime or second.runs_in_runtime)

    def _fuse_pairs(
        self, nodes: Sequence[ir.Node], value: ir.Value | None, alike: Callable[[Group, Group], bool]
    ) -> None:
        """Merge the groups of these nodes, each with those of the next nodes, where `alike` and `obstacle` allow it.

        value: what all groups read; None for the domain of the first one.
        """
        current: Group | None = None
        refused: set[Group] = set()  # groups that cannot merge with `current`
        for k, one in enumerate(nodes):
            refusals = 0
            for other in nodes[k + 1 : k + 1 + _COMPARED]:
                first, second = self._groups[one], self._groups[other]
                if first is not current:
                    current, refused = first, set()
                if first is second or second in refused:
                    continue
                if not may_fit(first, second) or not alike(first, second):
                    refused.add(second)
                    continue
                union = self.union(first, second, value or first.domain, [])
                if isinstance(union, Group):
                    self._merge(union)
                    refusals = 0
                    continue
                refused.add(second)
                refusals += 1
                if refusals == _REFUSED:
                    break

    def _fuse_tiny(self) -> None:
        """Merge independent groups of one depth and one domain whose time is the launch alone."""
        groups = [g for g in dict.fromkeys(self._groups.values()) if g.is_tiny]
        if len(groups) < 2:
            return
        depth = depths(self._order, self._unit, lambda unit: unit.nodes if isinstance(unit, Group) else (unit,))
        alike: dict[object, list[ir.Node]] = {}
        for group in groups:
            alike.setdefault((depth[group], self._shapes.dims(group.domain)), []).append(group.nodes[-1])
        for nodes in alike.values():
            self._fuse_pairs(nodes, None, lambda first, second: first.is_tiny and second.is_tiny)

    def _merge(self, union: Group) -> None:
        self._groups.update(dict.fromkeys(union.nodes, union))
        self._context.contract(union.nodes)

    def _unit(self, node: ir.Node) -> Group | ir.Node:
        return self._groups.get(node, node)

    def _same_size(self, one: ir.Value, other: ir.Value) -> bool:
        try:
            sizes = [product(index_ops.dims_of(value, self._shapes)) for value in (one, other)]
        except NotAffine:  # a rank or dim is unknown
            return False
        return sizes[0] == sizes[1]

    def _sources(self, group: Group) -> Iterator[tuple[ir.Node, list[ir.Node], ir.Value]]:
        """(producer in another group, views between, value) for every value that a group reads."""
        for value in group.inputs:
            views: list[ir.Node] = []
            producer = value.producer()
            while producer is not None and producer not in self._groups and self._is_open_view(producer):
                if len(views) == _MAX_VIEWS:
                    producer = None
                    break
                views.append(producer)
                operand = producer.inputs[0]
                producer = None if operand is None else operand.producer()
            if producer is not None and producer in self._groups:
                yield producer, views, value

    def _take_in_producers(self, group: Group, node: ir.Node) -> bool:
        """Merge the group with the groups that it reads, largest operand first. Returns whether groups were merged."""
        merged = False
        sources = sorted(self._sources(group), key=lambda s: -(self._shapes.bytes(s[2]) or 0))
        for producer, views, value in sources:
            group, other = self._groups[node], self._groups[producer]
            if group is other:
                continue
            union = self.union(other, group, value, views)
            if isinstance(union, str):
                self._separate.setdefault((producer, node), union)
                if (producer, value) not in self._noted:
                    self._noted.add((producer, value))
                    for reader in self._context.readers(value):
                        self._separate.setdefault((producer, reader), union)
                continue
            self._merge(union)
            merged = True
        return merged

    def union(self, producer: Group, consumer: Group, value: ir.Value, views: list[ir.Node]) -> Group | str:
        """Both groups as one, or the reason against merging them. The consumer reads `value`."""
        results = sum(len(node.outputs) for node in (*producer.nodes, *views))
        if len(consumer.reads) - results > _TOO_MANY_INPUTS:
            count = f"{len(consumer.reads)} tensors; the limit is {cost.MAX_OPERANDS}"
            return f"The kernel of {_reader(consumer, value)} reads {count}"
        union = self._together(producer, consumer, views)
        reason = self._obstacle(producer, consumer, union, value)
        return union if reason is None else reason

    def _together(self, producer: Group, consumer: Group, views: list[ir.Node]) -> Group:
        """Both groups as one, with the views between them."""
        both = {*producer.nodes, *views, *consumer.nodes}
        viewed = boundary.inputs_of(views, index_ops.data_inputs)
        reads = dict.fromkeys((*producer.reads, *viewed, *consumer.reads))
        writes = [*producer.writes, *(v for n in views for v in n.outputs), *consumer.writes]
        return Group(
            self._context,
            sorted(both, key=self._order.__getitem__),
            consumer.domain,
            producer.cost + consumer.cost,
            [v for v in reads if v.producer() not in both],
            [v for v in writes if v.is_graph_output() or self._is_read_outside(v, both)],
            bool(views) or producer.has_index_nodes or consumer.has_index_nodes,
        )

    def _is_read_outside(self, value: ir.Value, nodes: set[ir.Node]) -> bool:
        return any(reader not in nodes for reader in self._context.readers(value))

    def _obstacle(self, producer: Group, consumer: Group, union: Group, value: ir.Value) -> str | None:
        """The reason against merging two groups into `union`, None where they can merge."""
        if union.has_index_nodes:
            reason = self._index_obstacle(producer, consumer, union, value)
        else:
            reason = self._broadcast_obstacle(producer, consumer, set(union.nodes), value)
        if reason is not None:
            return reason
        operands = len(union.reads) + len(union.writes)
        if operands > cost.MAX_OPERANDS:
            return f"The fused kernel would read and write {operands} tensors; the limit is {cost.MAX_OPERANDS}"
        if len(union.nodes) > cost.MAX_NODES or union.cost > cost.MAX_COST:
            return f"The fused kernel would run {len(union.nodes)} operators and need too many registers"
        if self._context.spills(union.nodes):
            return f"The fused kernel of {len(union.nodes)} operators spilled registers when it was compiled"
        if self._context.makes_cycle(union.nodes):
            return (
                f"`{value.name}` also reaches {_reader(consumer, value)} through a node outside the kernel, so fusing"
                " would make a cycle"
            )
        return None

    def _broadcast_obstacle(self, producer: Group, consumer: Group, both: set[ir.Node], value: ir.Value) -> str | None:
        if self._shapes.same(producer.domain, consumer.domain):
            return None
        read_elsewhere = [v for v in producer.outputs if v.is_graph_output() or self._is_read_outside(v, both)]
        if read_elsewhere:
            own, other = (_shape_text(v, self._shapes) for v in (read_elsewhere[0], consumer.domain))
            return (
                f"`{read_elsewhere[0].name}` is read outside the kernel too, and its shape {own} differs from the"
                f" kernel's {other}"
            )
        if producer.cost > cost.MAX_RECOMPUTED_COST:
            return _recomputed(producer, value)
        return None

    def _index_obstacle(self, producer: Group, consumer: Group, union: Group, value: ir.Value) -> str | None:
        """The reason against merging groups with index nodes: too much recomputation or more bytes moved, else None.

        Sets the cost of `union`.
        """
        try:
            program = self._lowered(union)
        except ValueError as error:
            return str(error)
        larger = cost.grows(producer.domain, consumer.domain, self._shapes)
        if larger and producer.cost > cost.MAX_RECOMPUTED_COST:
            return _recomputed(producer, value)
        if program.cost - producer.cost - consumer.cost > cost.MAX_RECOMPUTED_COST:
            return (
                f"{_reader(consumer, value)} reads `{value.name}` in several orders, so {_producer(producer, value)}"
                " would be recomputed for each of them"
            )
        apart = [cost.moved(self._lowered(g), g.inputs, g.outputs, self._shapes) for g in (producer, consumer)]
        together = cost.moved(program, union.inputs, union.outputs, self._shapes)
        if together is not None and None not in apart and together > sum(b for b in apart if b is not None):
            separate = sum(b for b in apart if b is not None)
            return f"The fused kernel would move {together} bytes; the two kernels together move {separate}"
        union.cost = program.cost
        return None

    def regions(self) -> list[Region]:
        """Groups that replace two kernels or more, in the order of their first nodes.

        One operator alone is a region where the CUDA provider's kernel takes twice as long (benchmarks/notes: regions).
        """
        regions = []
        for group in dict.fromkeys(self._groups.values()):
            if group.moving_nodes < 2 and not is_slow_alone(group, self._shapes):
                continue
            inputs, outputs = group.inputs, group.outputs
            if not inputs or not outputs:
                continue
            region = Region(
                tuple(group.nodes), tuple(inputs), tuple(outputs),
                cost.region_traffic(group.nodes, inputs, outputs, self._shapes), self._kind,
                self._lowered(group) if group.has_index_nodes else None,
            )  # fmt: skip
            region.verify()
            regions.append(region)
        return sorted(regions, key=lambda r: self._order[r.nodes[0]])

    def refusals(self) -> list[Refusal]:
        """One refusal for every edge between nodes of different regions, where one of the nodes is elementwise.

        A node that is refused beside a Q or DQ that no kernel should run is named once.
        """
        refusals = []
        named: set[str] = set()
        for node in self._order:
            if not self._is_open(node):
                continue
            for producer in dict.fromkeys(v.producer() for v in index_ops.data_inputs(node) if v is not None):
                if producer is None or producer not in self._order or not self._is_open(producer):
                    continue
                if index_ops.is_index(node) and index_ops.is_index(producer):
                    continue
                refusal = self._refusal(producer, node)
                if refusal is None or refusal.node in named:
                    continue
                refusals.append(refusal)
                if any(integer_kernels.is_left_out(n, self._context.cuda) for n in (node, producer)):
                    named.add(refusal.node)
        return refusals

    def _is_open(self, node: ir.Node) -> bool:
        """Whether a pointwise region may take the node. Index operations on shapes stay on the host."""
        if self._context.is_owned(node):
            return False
        if eligibility.is_elementwise(node):
            return True
        return index_ops.is_index(node) and not any(v in self._context.host for v in node.outputs)

    def _is_open_view(self, node: ir.Node) -> bool:
        return index_ops.is_view(node) and node in self._order and self._is_open(node)

    def _refusal(self, producer: ir.Node, node: ir.Node) -> Refusal | None:
        for unfit, other in ((node, producer), (producer, node)):
            if unfit in self._unfit and not integer_kernels.is_left_out(unfit, self._context.cuda):
                return Refusal(unfit.name or "", unfit.op_type, other.name or "", self._unfit[unfit])
        if producer not in self._groups or node not in self._groups:
            return None  # a view, which ONNX Runtime runs without a kernel
        if self._groups[producer] is self._groups[node]:
            return None
        complete = f"No larger fused kernel exists: the kernel of {producer.op_type} was complete before this node"
        reason = self._separate.get((producer, node), complete)
        return Refusal(node.name or "", node.op_type, producer.name or "", reason)

"""Pointwise regions: grown from elementwise nodes, with a reason for every pair of them that is left apart.

Nodes are taken in topological order; each starts a group of its own and takes in the groups that produce its operands
where `_Growth.obstacle` finds nothing against it. All outputs of a group have the shape of its domain, and the graph
whose vertices are the groups never gets a cycle.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt import eligibility, traffic
from onnxopt.lower import constant, lower
from onnxopt.regions import Refusal, Region
from onnxopt.search import Search


@dataclasses.dataclass(eq=False)
class _Group:
    """Nodes that will run as one kernel. domain: a value with the shape the kernel runs over."""

    nodes: list[ir.Node]
    domain: ir.Value
    cost: int

    def outputs(self) -> list[ir.Value]:
        """Values that something outside the group reads, in order of definition."""
        inside = set(self.nodes)
        values = (v for n in self.nodes for v in n.outputs)
        return [v for v in values if v.is_graph_output() or any(u not in inside for u in v.consumers())]

    def inputs(self) -> list[ir.Value]:
        """Values read from outside, constants of one element left out, in order of first use."""
        inside = set(self.nodes)
        read = dict.fromkeys(v for n in self.nodes for v in n.inputs if v is not None)
        return [v for v in read if v.producer() not in inside and constant(v) is None]


def find(search: Search) -> tuple[list[Region], list[Refusal]]:
    """Regions of two nodes or more among those that no other kind has taken, and the refusals."""
    growth = _Growth(search)
    return growth.regions(), growth.refusals()


class _Growth:
    """The growing of groups in one graph."""

    def __init__(self, search: Search):
        self._search = search
        self._opsets, self._shapes = search.opsets, search.shapes
        self._order = search.order
        self._unfit: dict[ir.Node, str] = {}
        self._groups: dict[ir.Node, _Group] = {}
        self._kept_apart: dict[tuple[ir.Node, ir.Node], str] = {}
        for node in self._order:
            if not eligibility.is_elementwise(node) or search.is_taken(node):
                continue
            reason = eligibility.why_not(node, self._opsets, self._shapes, search.host)
            try:
                cost = self._cost(node) if reason is None else 0
            except ValueError as error:  # attributes that the operator does not allow for this dtype
                reason = f"{node.op_type} cannot be lowered: {error}"
            if reason is not None:
                self._unfit[node] = reason
                continue
            self._groups[node] = _Group([node], node.outputs[0], cost)
            self._take_in_producers(node)

    def _cost(self, node: ir.Node) -> int:
        """Work of one element of this node's result; ValueError where it has no program."""
        inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and constant(v) is None]
        return lower([node], inputs, node.outputs, self._opsets, self._shapes).cost

    def _take_in_producers(self, node: ir.Node) -> None:
        producers = {v.producer(): v for v in node.inputs if v is not None and v.producer() in self._groups}
        for producer, value in sorted(producers.items(), key=lambda p: -(self._shapes.bytes(p[1]) or 0)):
            group, other = self._groups[node], self._groups[producer]  # type: ignore[index]
            if group is other:
                continue
            reason = self.obstacle(other, group, value)
            if reason is not None:
                self._kept_apart[producer, node] = reason  # type: ignore[index]
                continue
            merged = sorted([*other.nodes, *group.nodes], key=self._order.__getitem__)
            union = _Group(merged, group.domain, other.cost + group.cost)
            self._groups.update(dict.fromkeys(merged, union))
            self._search.contract(merged)

    def obstacle(self, producer: _Group, consumer: _Group, value: ir.Value) -> str | None:
        """Why the two groups cannot or should not become one, or None. `value` goes from the one to the other."""
        both = {*producer.nodes, *consumer.nodes}
        needed_elsewhere = [
            v for v in producer.outputs() if v.is_graph_output() or any(u not in both for u in v.consumers())
        ]
        if not self._shapes.same(producer.domain, consumer.domain):
            if needed_elsewhere:
                return f"{needed_elsewhere[0].name} is needed elsewhere and its shape is not the consumer's"
            if producer.cost > traffic.MAX_RECOMPUTED_COST:
                return "it would be computed again for every element it is broadcast to"
        union = _Group([*producer.nodes, *consumer.nodes], consumer.domain, producer.cost + consumer.cost)
        operands = len(union.inputs()) + len(union.outputs())
        if operands > traffic.MAX_OPERANDS:
            return f"one kernel would have {operands} operands; {traffic.MAX_OPERANDS} is the most that pays"
        if len(union.nodes) > traffic.MAX_NODES or union.cost > traffic.MAX_COST:
            return f"one kernel would run {len(union.nodes)} operators and need too many registers"
        if self._search.makes_cycle(union.nodes):
            return f"{value.name} also reaches the consumer through a node outside, so one kernel would wait for itself"
        return None

    def regions(self) -> list[Region]:
        """Groups of two nodes or more, in the order of their first nodes."""
        found = []
        for group in dict.fromkeys(self._groups.values()):
            if len(group.nodes) < 2:
                continue
            inputs, outputs = group.inputs(), group.outputs()
            if not inputs or not outputs:
                continue
            region = Region(
                tuple(group.nodes), tuple(inputs), tuple(outputs),
                traffic.of_region(group.nodes, inputs, outputs, self._shapes),
            )  # fmt: skip
            region.verify()
            found.append(region)
        return sorted(found, key=lambda r: self._order[r.nodes[0]])

    def refusals(self) -> list[Refusal]:
        """One refusal for every edge between two elementwise nodes that did not become part of one region."""
        found = []
        for node in self._order:
            if not self._is_open(node):
                continue
            for producer in dict.fromkeys(v.producer() for v in node.inputs if v is not None):
                if producer is None or producer not in self._order or not self._is_open(producer):
                    continue
                refusal = self._refusal(producer, node)
                if refusal is not None:
                    found.append(refusal)
        return found

    def _is_open(self, node: ir.Node) -> bool:
        return eligibility.is_elementwise(node) and not self._search.is_taken(node)

    def _refusal(self, producer: ir.Node, node: ir.Node) -> Refusal | None:
        for unfit, other in ((node, producer), (producer, node)):
            if unfit in self._unfit:
                return Refusal(unfit.name or "", unfit.op_type, other.name or "", self._unfit[unfit])
        if self._groups[producer] is self._groups[node]:
            return None
        reason = self._kept_apart.get((producer, node), "its group was already complete")
        return Refusal(node.name or "", node.op_type, producer.name or "", reason)

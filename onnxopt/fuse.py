"""Fuse: grow regions of elementwise nodes that one kernel can run, and say of every pair left apart why.

Nodes are taken in topological order; each starts a group of its own and takes in the groups that produce its operands
where `_Growth.obstacle` finds nothing against it. All outputs of a group have the shape of its domain, and the graph
whose vertices are the groups never gets a cycle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onnxopt import eligibility, traffic
from onnxopt import shapes as shape_inference
from onnxopt.lower import constant, lower
from onnxopt.regions import FusionPlan, Refusal, Region
from onnxopt.shapes import Shapes


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


def fuse(model: ir.Model) -> FusionPlan:
    """Regions of all graphs of a model, control-flow bodies included, and the refusals. The model is not changed."""
    shapes = shape_inference.infer(model)
    host = eligibility.host_values(model.graphs(), shapes)
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for graph in model.graphs():
        growth = _Growth(graph, model.opset_imports, shapes, host)
        regions += growth.regions()
        refusals += growth.refusals()
    return FusionPlan(tuple(regions), tuple(refusals), shapes)


class _Growth:
    """The growing of groups in one graph."""

    def __init__(self, graph: ir.Graph, opsets: Mapping[str, int], shapes: Shapes, host: set[ir.Value]):
        self._opsets, self._shapes = opsets, shapes
        self._order = {node: k for k, node in enumerate(graph)}
        self._reads = {node: _reads(node) for node in graph}
        self._unfit: dict[ir.Node, str] = {}
        self._groups: dict[ir.Node, _Group] = {}
        self._kept_apart: dict[tuple[ir.Node, ir.Node], str] = {}
        for node in graph:
            if not eligibility.is_elementwise(node):
                continue
            reason = eligibility.why_not(node, opsets, shapes, host)
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
        if self._makes_cycle(producer, consumer):
            return f"{value.name} also reaches the consumer through a node outside, so one kernel would wait for itself"
        return None

    def _makes_cycle(self, producer: _Group, consumer: _Group) -> bool:
        """Whether the consumer's group depends on the producer's through something that is in neither."""
        target = set(producer.nodes)
        seen: set[ir.Node] = {*consumer.nodes, *target}
        pending = [s for n in consumer.nodes for s in self._sources(n)]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            members = self._members(node)
            seen.update(members)
            sources = [s for m in members for s in self._sources(m)]
            if any(s in target for s in sources):
                return True
            pending += sources
        return False

    def _members(self, node: ir.Node) -> list[ir.Node]:
        return self._groups[node].nodes if node in self._groups else [node]

    def _sources(self, node: ir.Node) -> Iterator[ir.Node]:
        for value in self._reads[node]:
            producer = value.producer()
            if producer is not None and producer in self._order:
                yield producer

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
            if not eligibility.is_elementwise(node):
                continue
            for producer in dict.fromkeys(v.producer() for v in node.inputs if v is not None):
                if producer is None or producer not in self._order or not eligibility.is_elementwise(producer):
                    continue
                refusal = self._refusal(producer, node)
                if refusal is not None:
                    found.append(refusal)
        return found

    def _refusal(self, producer: ir.Node, node: ir.Node) -> Refusal | None:
        for unfit, other in ((node, producer), (producer, node)):
            if unfit in self._unfit:
                return Refusal(unfit.name or "", unfit.op_type, other.name or "", self._unfit[unfit])
        if self._groups[producer] is self._groups[node]:
            return None
        reason = self._kept_apart.get((producer, node), "its group was already complete")
        return Refusal(node.name or "", node.op_type, producer.name or "", reason)


def _reads(node: ir.Node) -> tuple[ir.Value, ...]:
    """What a node reads: its inputs, and what the bodies of a control-flow node capture from outside."""
    inner = [attribute.as_graph() for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH]
    captured = [v for graph in inner for n in graph for v in _reads(n)]
    captured += [v for graph in inner for v in graph.outputs]
    return tuple(dict.fromkeys(v for v in (*node.inputs, *captured) if v is not None))

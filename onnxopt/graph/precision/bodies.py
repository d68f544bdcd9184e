"""The graphs whose precision is chosen: the main graph, the branches of If, and the bodies of Loop and Scan.

All of them run in the scope of the main graph. What Loop and Scan carry from step to step, read and return keeps its
dtype; the nodes inside become 16 bit between Casts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.graph.branches import branches_of

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclasses.dataclass(frozen=True)
class State:
    """What a body carries from step to step. start: the operand. inside: the body's input. after: the body's output of
    a step. result: of the node."""

    start: ir.Value | None
    inside: ir.Value
    after: ir.Value
    result: ir.Value


@dataclasses.dataclass(frozen=True)
class Body:
    """The body of a Loop or Scan.

    scanned: the operands of Scan that a step reads one element of, with the body's inputs. stacked: the body's outputs
    that the node returns of all steps, with its results.
    """

    node: ir.Node
    graph: ir.Graph
    states: tuple[State, ...]
    scanned: tuple[tuple[ir.Value | None, ir.Value], ...]
    stacked: tuple[tuple[ir.Value, ir.Value], ...]

    @property
    def condition(self) -> ir.Value | None:
        """What a step of a Loop computes of whether there is another; None for Scan."""
        return self.graph.outputs[0] if self.node.op_type == "Loop" else None


def nodes_of(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of the graphs in it, each behind those that compute its operands; If, Loop and Scan
    before their own."""
    for node in graph:
        yield node
        for inner in graphs_of(node):
            yield from nodes_of(inner)


def graphs_of(node: ir.Node) -> list[ir.Graph]:
    """The branches of an If, the body of a Loop or Scan; none of other nodes."""
    body = body_of(node)
    return branches_of(node) if body is None else [body.graph]


def body_of(node: ir.Node) -> Body | None:
    """The body of a Loop or of a Scan of opset 9 or later; None of other nodes."""
    if node.domain != "" or node.op_type not in ("Loop", "Scan") or "body" not in node.attributes:
        return None
    graph = node.attributes["body"].as_graph()
    if node.op_type == "Loop":
        return _body(node, graph, len(node.inputs) - 2, 2, 1, ())
    if len(node.inputs) != len(graph.inputs):
        return None  # of opset 8, whose inputs have a batch
    count = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    return _body(node, graph, count, 0, 0, node.inputs[count:])


def _body(
    node: ir.Node, graph: ir.Graph, count: int, first: int, skipped: int, scanned: Sequence[ir.Value | None]
) -> Body | None:
    """first: the first operand that is a state. skipped: the outputs of the body before its states."""
    inside, after = graph.inputs[first : first + count], graph.outputs[skipped : skipped + count]
    if len(inside) != count or len(after) != count:
        return None
    rows = zip(node.inputs[first : first + count], inside, after, node.outputs, strict=False)
    return Body(
        node,
        graph,
        tuple(State(*row) for row in rows),
        tuple(zip(scanned, graph.inputs[first + count :], strict=False)),
        tuple(zip(graph.outputs[skipped + count :], node.outputs[count:], strict=False)),
    )


def copies(graph: ir.Graph) -> dict[ir.Value, list[ir.Value]]:
    """By value that hands on others, as it comes into a body or out of a branch or body: these others."""
    rows: dict[ir.Value, list[ir.Value]] = {}
    for node in nodes_of(graph):
        branches, body = branches_of(node), body_of(node)
        for k, value in enumerate(node.outputs if branches else ()):
            rows[value] = [branch.outputs[k] for branch in branches]
        if body is None:
            continue
        for state in body.states:
            own = [v for v in (state.start, state.after) if v is not None]
            rows[state.inside], rows[state.result] = own, own
        rows |= {inside: [v] for v, inside in body.scanned if v is not None}
        rows |= {result: [v] for v, result in body.stacked}
    return rows


def runs_graphs(node: ir.Node) -> bool:
    """Whether a node has graphs as attributes."""
    return any(a.type in _GRAPHS for a in node.attributes.values())

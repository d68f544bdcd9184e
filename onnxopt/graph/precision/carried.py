"""States of Loop and Scan: which nodes add to them, which of them grow with the steps, and what decides these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxopt.graph.match import constant, is_constant
from onnxopt.graph.precision import bodies, operators
from onnxopt.graph.precision.bodies import Body
from onnxopt.graph.precision.operators import Sort
from onnxopt.graph.precision.values import is_float

if TYPE_CHECKING:
    import networkx as nx

Keep = Callable[[ir.Node, str], None]
_RENEWS = (Sort.PRODUCT, Sort.NORM)
_SIZES = frozenset({"Shape", "Size"})
_LONGEST = 64  # steps of a loop of a fixed number of them whose measured ranges are those of all runs


def keep_carried(model: ir.Model, keep: Keep) -> None:
    """Keep the elementwise and moving nodes that compute a state from the state of the step before.

    What a step rounds there, all later steps inherit: small terms of a large sum would never be added. So do gates near
    1 and terms, up to the products and norms that they are computed from. Products and norms make new values of a
    state; these may be rounded.
    """
    sources = bodies.copies(model.graph)
    if not sources:
        return
    import networkx as nx  # takes 0.1 s, and few models have loops

    flow: nx.DiGraph[ir.Value | ir.Node] = nx.DiGraph()
    for value, copied in sources.items():
        flow.add_edges_from((source, value) for source in copied)
    for node in bodies.nodes_of(model.graph):
        if bodies.graphs_of(node) or operators.sort_of(node) in _RENEWS or node.op_type in _SIZES:
            continue
        flow.add_edges_from((v, node) for v in node.inputs if v is not None and not is_constant(v))
        flow.add_edges_from((node, v) for v in node.outputs)
    for component in nx.strongly_connected_components(flow):
        if len(component) > 1:
            nodes = [n for n in component if isinstance(n, ir.Node)]
            for node in nodes:
                keep(node, "It computes a state of a loop from the state before")
            _keep_terms(nodes, keep)


def _keep_terms(pending: list[ir.Node], keep: Keep) -> None:
    """Keep the elementwise and moving nodes that compute what these nodes read."""
    seen = set(pending)
    while pending:
        for value in pending.pop().inputs:
            node = None if value is None or not is_float(value) else value.producer()
            if node is not None and node not in seen and operators.sort_of(node) in (Sort.ELEMENTWISE, Sort.MOVE):
                seen.add(node)
                keep(node, "What it computes is added to a state of a loop, or multiplies it")
                pending.append(node)


def keep_deciding(model: ir.Model, keep: Keep) -> None:
    """Keep what computes the floats that are compared to decide whether a Loop goes on.

    A difference of what two steps compute is small where a loop ends, so whatever computes its terms is kept too.
    """
    sources = bodies.copies(model.graph)
    for body in filter(None, map(bodies.body_of, bodies.nodes_of(model.graph))):
        if body.condition is None:
            continue
        own = set(bodies.nodes_of(body.graph))
        reason = f"It decides how often {body.node.op_type} runs"
        for node in _compared(body.condition, own, sources):
            _keep_compared(node, own, sources, lambda n: keep(n, reason))  # noqa: B023


def _compared(condition: ir.Value, own: set[ir.Node], sources: Mapping[ir.Value, list[ir.Value]]) -> Iterator[ir.Node]:
    """The nodes that make integers or booleans of floats, upstream of a condition; orders of elements are none."""
    pending, seen = [condition], set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending += sources.get(value, [])
        node = value.producer()
        if node is None or node not in own or operators.is_order(node) or node.op_type in _SIZES:
            continue
        if any(map(is_float, node.inputs)):
            yield node
        else:
            pending += [v for v in node.inputs if v is not None]


def _keep_compared(
    node: ir.Node, own: set[ir.Node], sources: Mapping[ir.Value, list[ir.Value]], keep: Callable[[ir.Node], None]
) -> None:
    """Keep a node and what computes its floats: up to products and norms, and through these behind a difference."""
    pending, seen = [(node.outputs[0], False)], set[tuple[ir.Value, bool]]()
    while pending:
        value, differs = pending.pop()
        if (value, differs) in seen:
            continue
        seen.add((value, differs))
        pending += [(v, differs) for v in sources.get(value, []) if is_float(v)]
        producer = value.producer()
        if producer is None or producer not in own or operators.is_order(producer) or producer.op_type in _SIZES:
            continue
        if operators.sort_of(producer) in _RENEWS and not differs:
            continue
        keep(producer)
        differs = differs or _is_difference(producer)
        pending += [(v, differs) for v in producer.inputs if is_float(v) and v is not None and not is_constant(v)]


def _is_difference(node: ir.Node) -> bool:
    """Whether little may be left of two terms."""
    if node.op_type == "Sub":
        return True
    return node.op_type in ("Add", "Sum") and sum(not is_constant(v) for v in node.inputs) > 1


def runs_as_measured(body: Body) -> bool:
    """Whether a body runs equally often, and not very often, whatever the inputs are."""
    node = body.node
    if node.op_type == "Scan":
        axes = node.attributes.get_ints("scan_input_axes", None) if "scan_input_axes" in node.attributes else None
        for k, (value, _) in enumerate(body.scanned):
            axis = axes[k] if axes else 0
            if value is not None and value.shape is not None and -len(value.shape) <= axis < len(value.shape):
                size = value.shape[axis]
                return isinstance(size, int) and size <= _LONGEST
        return False
    steps, after = constant(node.inputs[0]), body.condition
    while after is not None and (producer := after.producer()) is not None and producer.op_type == "Identity":
        after = producer.inputs[0]
    goes_on = after is body.graph.inputs[1] or (is_constant(after) and bool((constant(after) != 0).all()))  # type: ignore[union-attr]
    return steps is not None and steps.size == 1 and int(steps.reshape(-1)[0]) <= _LONGEST and goes_on

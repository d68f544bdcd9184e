"""Why attention was not recognised: for each Softmax between two products, the condition or the operator in the way."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnxscript.rewriter import MatchingTracer, RewriteRule

from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite.attention.head_sizes import PaddedDotProduct
from onnxopt.graph.rewrite.attention.hidden_rows import PRODUCTS
from onnxopt.graph.rewrite.attention.sdpa import ScaledDotProduct
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.program.operators import table as operators

# Operators between a Softmax and a product that are followed, beside elementwise ones.
_FOLLOWED = frozenset({"Identity", "Dropout", "Reshape", "Flatten", "Transpose", "Unsqueeze", "Squeeze", "Trilu"})
_SINK_OPERATORS = ("Concat", "Slice")  # in front of a Softmax and behind it
_CODING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FAR = 8  # operators between a Softmax and the product on either side
_BEFORE = frozenset(
    {"Mul", "Div", "Add", "Where", "Cast", "Max", "Tanh", "Concat"}
)  # the rule's operators between scores and Softmax
_AFTER = frozenset({"Cast", "IsNaN", "Where", "Slice"})  # and between the Softmax and the product with v


def softmaxes(graph: ir.Graph) -> list[tuple[ir.Node, ir.Node]]:
    """Every Softmax between two products, the second of which is a MatMul, with that MatMul."""
    pairs = []
    for node in graph.all_nodes():
        if node.op_type == "Softmax" and node.domain == "":
            upstream, downstream = _path(node, forward=False), _path(node, forward=True)
            if upstream and downstream and downstream[-1].op_type == "MatMul":
                pairs.append((node, downstream[-1]))
    return pairs


def product_before(softmax: ir.Node) -> ir.Node:
    """The product that computes the scores of a Softmax between two products."""
    return _path(softmax, forward=False)[-1]


def refusals(model: ir.Model, index_values: IndexValues, pads: bool) -> tuple[Refusal, ...]:
    """A refusal for every Softmax between two products that is left once attention was recognised.

    pads: whether heads were padded where that was possible.
    """
    rule = (PaddedDotProduct if pads else ScaledDotProduct).rule(index_values)
    return tuple(
        Refusal(softmax.name or "", "Softmax", product.name or "", _reason(model, rule, softmax, product))
        for softmax, product in softmaxes(model.graph)
    )


def _reason(model: ir.Model, rule: RewriteRule, softmax: ir.Node, product: ir.Node) -> str:
    tracer, graph = MatchingTracer(), product.graph
    assert graph is not None
    rule.match(model, graph, product, check_nodes_are_removable=True, tracer=tracer)
    best = next(iter(tracer.best_matches_map.get(rule, ())), None)
    reason = best.match_result.reason if best is not None else ""
    if not reason or "alternatives" in reason:  # the pattern did not match, and the matcher's own text says little
        reason = _structure(softmax)
    return f"not recognised as attention: {reason}"


def _structure(softmax: ir.Node) -> str:
    """How the operators between the two products differ from the rule's pattern."""
    axis = softmax.attributes.get_int("axis", -1)
    rank = len(softmax.inputs[0].shape) if softmax.inputs[0] is not None and softmax.inputs[0].shape is not None else 0
    if axis not in (-1, rank - 1):
        return f"Softmax normalizes along axis {axis}, not along the last one"
    for path, structure, place in (
        (_path(softmax, forward=False), _BEFORE, "between the product of q and k and Softmax"),
        (_path(softmax, forward=True), _AFTER, "between Softmax and the product with v"),
    ):
        for node in path[:-1]:
            if node.op_type in _CODING:
                return f"{node.op_type} `{node.name}` rounds to codes {place}, which no operator for attention does"
            if node.op_type not in structure:
                return f"{node.op_type} `{node.name}` is {place}"
    upstream = _path(softmax, forward=False)
    if upstream[-1].op_type != "MatMul":
        return f"{upstream[-1].op_type} computes the scores, not MatMul"
    readers = [reader for node in upstream for value in node.outputs for reader in value.consumers()]
    if len(readers) > len(upstream):
        return "the scores have other readers besides Softmax"
    return "the operators around Softmax are in an order that the rule does not know, or have other readers"


def _path(start: ir.Node, *, forward: bool) -> list[ir.Node]:
    """The nodes between `start` and the nearest product, which comes last; no nodes where there is no product."""
    came_from: dict[ir.Node, ir.Node] = {}
    ring = [start]
    for _ in range(_FAR):
        following: list[ir.Node] = []
        for node in ring:
            for other in _neighbours(node, forward):
                if other in came_from or other is start:
                    continue
                came_from[other] = node
                if other.op_type in PRODUCTS:
                    return _trail(other, start, came_from)
                if (
                    other.op_type in (*_FOLLOWED, _SINK_OPERATORS[forward])
                    or (other.domain, other.op_type) in operators.OPERATORS
                ):
                    following.append(other)
        ring = following
    return []


def _trail(end: ir.Node, start: ir.Node, came_from: dict[ir.Node, ir.Node]) -> list[ir.Node]:
    trail = [end]
    while came_from[trail[-1]] is not start:
        trail.append(came_from[trail[-1]])
    return trail[::-1]


def _neighbours(node: ir.Node, forward: bool) -> Iterator[ir.Node]:
    if forward:
        for value in node.outputs:
            yield from value.consumers()
    else:
        for operand in node.inputs:
            producer = operand.producer() if operand is not None else None
            if producer is not None:
                yield producer

"""Why attention was not recognised: how far the rule came at each Softmax between two products, and what stopped it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnxscript.rewriter import MatchingTracer

from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite.attention import ScaledDotProduct
from onnxopt.program import operators

_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum"})
_PASSED = frozenset({"Identity", "Dropout", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Trilu"})  # and elementwise
_FAR = 8  # operators between a Softmax and the product on either side
_BEFORE = frozenset({"Mul", "Div", "Add", "Where", "Cast"})  # what the rule knows between the scores and the Softmax
_AFTER = frozenset({"Cast", "IsNaN", "Where"})


def softmaxes(model: ir.Model) -> list[tuple[ir.Node, ir.Node]]:
    """Every Softmax whose operand comes from a product and whose result goes to a MatMul, and the latter."""
    found = []
    for node in model.graph.all_nodes():
        if node.op_type == "Softmax" and node.domain == "":
            before, after = _path(node, forward=False), _path(node, forward=True)
            if before and after and after[-1].op_type == "MatMul":
                found.append((node, after[-1]))
    return found


def refusals(model: ir.Model, rule: ScaledDotProduct) -> tuple[Refusal, ...]:
    """One refusal for every such Softmax that is still there."""
    return tuple(
        Refusal(softmax.name or "", "Softmax", product.name or "", _reason(model, rule, softmax, product))
        for softmax, product in softmaxes(model)
    )


def _reason(model: ir.Model, rule: ScaledDotProduct, softmax: ir.Node, product: ir.Node) -> str:
    compiled, tracer = rule.rule_of_self(), MatchingTracer()
    graph = product.graph
    assert graph is not None
    compiled.match(model, graph, product, check_nodes_are_removable=True, tracer=tracer)
    best = next(iter(tracer.best_matches_map.get(compiled, ())), None)
    matched = len(best.match_result.nodes) if best is not None else 0
    reason = best.match_result.reason if best is not None else ""
    if not reason or "alternatives" in reason:
        reason = _structure(softmax)
    return f"not recognised as attention, {matched} operators matched: {reason}"


def _structure(softmax: ir.Node) -> str:
    """What differs from the form that the rule knows, told from the way between the two products."""
    axis = softmax.attributes.get_int("axis", -1)
    rank = len(softmax.inputs[0].shape) if softmax.inputs[0] is not None and softmax.inputs[0].shape is not None else 0
    if axis not in (-1, rank - 1):
        return f"the softmax is along axis {axis}"
    for path, known, place in (
        (_path(softmax, forward=False), _BEFORE, "between the product of q and k and the softmax"),
        (_path(softmax, forward=True), _AFTER, "between the softmax and the product with v"),
    ):
        for node in path[:-1]:
            if node.op_type not in known:
                return f"{node.op_type} ({node.name}) stands {place}"
    if _path(softmax, forward=False)[-1].op_type != "MatMul":
        return f"the scores come from {_path(softmax, forward=False)[-1].op_type}"
    users = [user for node in _path(softmax, forward=False) for value in node.outputs for user in value.consumers()]
    if len(users) > len(_path(softmax, forward=False)):
        return "the scores are needed elsewhere too"
    return "its operators stand in an order that the rule does not know, or their results are needed elsewhere too"


def _path(start: ir.Node, *, forward: bool) -> list[ir.Node]:
    """The nodes from next to `start` up to the nearest product, which is the last; nothing where there is none."""
    came_from: dict[ir.Node, ir.Node] = {}
    ring = [start]
    for _ in range(_FAR):
        following: list[ir.Node] = []
        for node in ring:
            for other in _neighbours(node, forward):
                if other in came_from or other is start:
                    continue
                came_from[other] = node
                if other.op_type in _PRODUCTS:
                    return _trail(other, start, came_from)
                if other.op_type in _PASSED or (other.domain, other.op_type) in operators.OPERATORS:
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

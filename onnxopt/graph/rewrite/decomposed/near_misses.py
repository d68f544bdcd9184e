"""Why a GELU was not recognised: for each Erf and each Tanh of a cubic, the first node where the nearest rule stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir
from onnxscript.rewriter import MatchingTracer

from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite.decomposed.decomposed_activations import ORDERS, DecomposedGelu

_OPERATORS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Cast"})
_FAR = 4  # operators between the anchor and the products around it


def refusals(model: ir.Model) -> tuple[Refusal, ...]:
    """A refusal for every Erf and every Tanh whose result is multiplied as in GELU, once GELUs were recognised."""
    rows = []
    for node in model.graph.all_nodes():
        if node.domain == "" and (node.op_type == "Erf" or (node.op_type == "Tanh" and _is_of_cubic(node))):
            products = [other for other in _within(node, _consumers) if other.op_type in ("Mul", "Div")]
            if products:
                rows.append(Refusal(node.name or "", node.op_type, "", _reason(model, node, products)))
    return tuple(rows)


def _reason(model: ir.Model, anchor: ir.Node, products: list[ir.Node]) -> str:
    reason, longest = "", 0
    for order in ORDERS:
        rule = DecomposedGelu.rule(order, anchor.op_type == "Tanh")
        for product in products:
            if product.op_type != "Mul" or product.graph is None:
                continue
            tracer = MatchingTracer()
            rule.match(model, product.graph, product, check_nodes_are_removable=True, tracer=tracer)
            for info in tracer.best_matches_map.get(rule, ()):
                match = info.match_result
                if len(match.nodes) > longest:
                    longest, reason = len(match.nodes), _text(match.reason, match.failure_nodes_and_values)
    reason = reason or f"{products[-1].op_type} `{products[-1].name}` is in no order that the rules know"
    return f"not recognised as GELU: {reason}"


def _text(reason: str, sources: list[ir.Node | ir.Value]) -> str:
    """What a rule's check says; where the pattern did not match, the node at which the matcher stopped."""
    if "`" in reason or "opset" in reason:
        return reason
    stops = [source if isinstance(source, ir.Node) else source.producer() for source in sources]
    nodes = [node for node in stops if node is not None]
    if "other uses" in reason or not nodes:
        return "a value between its nodes has other readers" if "other uses" in reason else ""
    return f"the rule stops at {nodes[0].op_type} `{nodes[0].name}`"


def _is_of_cubic(tanh: ir.Node) -> bool:
    """Whether a Tanh's operand has a power of 3 or a square among the operators that compute it."""
    return any(
        node.op_type == "Pow" or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1])
        for node in _within(tanh, _producers)
    )


def _within(start: ir.Node, neighbours: Callable[[ir.Node], Iterator[ir.Node]]) -> list[ir.Node]:
    """The elementwise operators of a GELU that are near a node on one side, nearest first."""
    seen, ring = dict.fromkeys([start]), [start]
    for _ in range(_FAR):
        ring = [other for node in ring for other in neighbours(node) if other.op_type in _OPERATORS]
        seen |= dict.fromkeys(ring)
    return list(seen)[1:]


def _consumers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.outputs:
        yield from value.consumers()


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        if value is not None and (producer := value.producer()) is not None:
            yield producer

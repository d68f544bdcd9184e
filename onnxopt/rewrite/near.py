"""Why attention was not recognised: how far the rule came at each Softmax between two products, and what was in the way."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnxscript.rewriter import MatchingTracer

from onnxopt.regions import Refusal
from onnxopt.rewrite.attention import ScaledDotProduct

_BESIDE = frozenset({"Add", "Mul", "Div", "Sub", "Where", "Cast", "IsNaN", "Identity", "Dropout", "Clip", "Reshape"})
_FAR = 6  # operators between a Softmax and the product on either side


def softmaxes(model: ir.Model) -> list[tuple[ir.Node, ir.Node]]:
    """Every Softmax whose operand comes from a MatMul and whose result goes to one, and the latter."""
    found = []
    for node in model.graph.all_nodes():
        if node.op_type == "Softmax" and node.domain == "":
            after = next((n for n in _around(node, forward=True) if n.op_type == "MatMul"), None)
            before = next((n for n in _around(node, forward=False) if n.op_type in ("MatMul", "Gemm", "Einsum")), None)
            if after is not None and before is not None:
                found.append((node, after))
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
    if best is None:
        return "not attention: nothing of the pattern matches"
    matched = [node for node in best.match_result.nodes if node.op_type not in ("Constant",)]
    reason = best.match_result.reason or "the replacement could not be made"
    return f"not recognised as attention, {len(matched)} operators matched: {reason}"


def _around(node: ir.Node, *, forward: bool) -> Iterator[ir.Node]:
    """Nodes reached through operators that stand between the products of attention, nearest first."""
    seen, ring = {node}, [node]
    for _ in range(_FAR):
        following: list[ir.Node] = []
        for at in ring:
            neighbours = (
                [user for value in at.outputs for user in value.consumers()]
                if forward
                else [p for value in at.inputs if value is not None and (p := value.producer()) is not None]
            )
            for other in neighbours:
                if other not in seen:
                    seen.add(other)
                    yield other
                    if other.op_type in _BESIDE:
                        following.append(other)
        ring = following

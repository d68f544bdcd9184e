"""ScatterND that writes every element is what it writes.

    ScatterND(x, every position in order, y) -> y

Exporters write `mask[:, :, :, :n] = ...` so, where n is the length of the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.gathers import places
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope


class EveryElementWritten(RewriteRuleClassBase):
    """ScatterND of every element in order, that reduces nothing."""

    def __init__(self, values: IndexValues) -> None:
        super().__init__()
        self._values = values

    def pattern(self, op, x, indices, updates):
        return op.ScatterND(x, indices, updates, _allow_other_attributes=True, _outputs=["y"])

    def check(
        self, context: MatchContext, x: ir.Value, indices: ir.Value, updates: ir.Value, y: ir.Value
    ) -> MatchResult:
        result, node = MatchResult(), y.producer()
        if node is None or node.attributes.get_string("reduction", "none") != "none":
            return result.fail("ScatterND computes with the elements that are there")
        positions, data, written = self._values.positions(indices), self._values.dims(x), self._values.dims(updates)
        if positions is None or data is None or written is None:
            return result.fail("the positions, or the dims of the data, are not known")
        if written != data or places(positions, data, written) != list(range(len(positions))):
            return result.fail("the positions do not count every element in order")
        return result

    def rewrite(self, op, x: ir.Value, indices: ir.Value, updates: ir.Value, y: ir.Value):
        return op.Identity(updates)


def _rules(scope: Scope) -> Sequence[Rooted]:
    return [Rooted("ScatterND", EveryElementWritten.rule(scope.index_values))]


RULES = (RuleSet(_rules),)


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph, or one in it, has a ScatterND of computed positions."""
    return any(node.op_type == "ScatterND" and not is_constant(node.inputs[1]) for node in graph.all_nodes())

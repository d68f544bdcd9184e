"""A constant factor on the queries becomes part of the attention operator's scale.

MultiHeadAttention(q * c, k, v; scale) -> MultiHeadAttention(q, k, v; scale * c)
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention_nodes import is_kept_for_kernel, keep_for_kernel
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import CONTRIB


class ScaledQuery(RewriteRuleClassBase):
    def pattern(self, op, q, c, k, v):
        return op.MultiHeadAttention(
            op.Mul(q, c), k, v,
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"],
        )  # fmt: skip

    def check(self, context: MatchContext, q: ir.Value, c: ir.Value, y: ir.Value, **_: ir.Value) -> MatchResult:
        tensor = c.const_value
        if tensor is None or tensor.size != 1 or (q.shape is not None and len(tensor.shape) > len(q.shape)):
            return MatchResult().fail(f"the factor `{c.name}` is not a constant of one element")
        factor = float(tensor.numpy().item())
        if not math.isfinite(factor) or factor == 0:
            return MatchResult().fail(f"the factor `{c.name}` is {factor}")
        return MatchResult()

    def rewrite(self, op, q: ir.Value, c: ir.Value, y: ir.Value, **_: ir.Value):
        node = y.producer()
        assert node is not None and c.const_value is not None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        attributes["scale"] *= float(c.const_value.numpy().item())
        attended = op.MultiHeadAttention(q, *node.inputs[1:], _domain=CONTRIB, **attributes)
        if is_kept_for_kernel(node):
            keep_for_kernel(attended)
        return attended


RULES = (RuleSet(lambda _: [Rooted("MultiHeadAttention", ScaledQuery.rule())]),)

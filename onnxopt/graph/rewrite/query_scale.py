"""A constant factor on the queries becomes part of the attention operator's scale.

MultiHeadAttention(q * c, k, v; scale) -> MultiHeadAttention(q, k, v; scale * c)

Attention is recognised with a factor that nothing else reads. `copy_shared_factors` sees to that first: queries with a
factor may also be multiplied by embeddings of positions.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite import near_misses
from onnxopt.graph.rewrite.attention_nodes import is_kept_for_kernel, keep_for_kernel
from onnxopt.graph.rewrite.attention_operands import scalar
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


def copy_shared_factors(model: ir.Model) -> bool:
    """Give the scores of each attention a factor of their own where others read it too. Whether there was any.

    Copies that no attention takes in are merged with the other nodes when equal nodes are.
    """
    changed = False
    for softmax, _ in near_misses.softmaxes(model):
        product = near_misses.product_before(softmax)
        for position, operand in enumerate(product.inputs):
            node = None if operand is None else operand.producer()
            if operand is None or node is None or len(operand.uses()) == 1 or not _is_factor(node):
                continue
            attributes = list(node.attributes.values())
            copy = ir.Node("", node.op_type, node.inputs, attributes, name=f"{node.name}_of_{product.name}")
            result = copy.outputs[0]
            result.name, result.type, result.shape = f"{operand.name}_of_{product.name}", operand.type, operand.shape
            product.graph.insert_before(product, copy)  # type: ignore[union-attr]
            product.replace_input_with(position, result)
            changed = True
    return changed


def _is_factor(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Mul", "Div") and any(scalar(v) is not None for v in node.inputs)


RULES = (RuleSet(lambda _: [Rooted("MultiHeadAttention", ScaledQuery.rule())]),)

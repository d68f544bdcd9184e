"""Attention with heads of a size that ONNX Runtime's fused kernels do not take, to one Sdpa.

    MatMul(P, v) -> Sdpa(q, k, v, mask)     as of attention.py, for heads of 20 elements

Either padded_heads.py fills the heads up afterwards, or attention_nodes.py writes them for a kernel of onnxopt's.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from onnxopt.costs import attention as costs
from onnxopt.costs.attention import AttentionSize
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention import padded_heads
from onnxopt.graph.rewrite.attention.attention_nodes import attends
from onnxopt.graph.rewrite.attention.attention_operands import has_usual_heads
from onnxopt.graph.rewrite.attention.sdpa import Form, ScaledDotProduct, odd_size
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope
from onnxopt.graph.shapes.value_dims import dims_of
from onnxopt.program import flash_attention


class PaddedDotProduct(ScaledDotProduct):
    """The same for heads of other sizes, where padded_heads.py can pad them afterwards."""

    def size_obstacle(self, form: Form, context: MatchContext) -> str:
        if has_usual_heads(form.q, form.v):
            return "heads need no padding"
        if form.widened:
            return f"{odd_size(form)}, and values are cast to float32"
        if form.scaled is not None:
            return f"{odd_size(form)}, and queries have a factor of more than one element"
        y, inside = context.root.outputs[0], frozenset(context.nodes)
        plan = padded_heads.plan(
            padded_heads.Attention(form.q, form.k_transposed, form.v, y, form.mask_value, 2, inside)
        )
        return f"{odd_size(form)}, and zeros cannot pad them: {plan}" if isinstance(plan, str) else ""


class DotProductOfOwnKernel(ScaledDotProduct):
    """The same for heads of other sizes that zeros did not pad, where a kernel of onnxopt's will run them.

    scope: of the rules.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope.index_values)
        self._scope = scope

    def size_obstacle(self, form: Form, context: MatchContext) -> str:
        if has_usual_heads(form.q, form.v):
            return "operators of ONNX Runtime take these heads"
        (_, heads, queries, width), (_, _, keys, values) = dims_of(form.q), dims_of(form.v)
        if not attends(form.q.dtype, self._scope.gpu) or form.q.dtype is None:
            return f"{odd_size(form)}, and onnxopt's kernel none of {form.q.dtype}"
        if not (isinstance(heads, int) and isinstance(width, int) and isinstance(values, int)):
            return "the number of heads, or of their elements, is not known"
        if reason := flash_attention.why_not(heads, heads, width, values, form.scale):
            return reason
        if form.widened or form.guards_rows or not _joins_heads(context.root.outputs[0]):
            return f"{odd_size(form)}, and onnxopt's kernel writes concatenated heads, which this result is not"
        asked, seen = (n if isinstance(n, int) else self._scope.expected.of(n) for n in (queries, keys))
        paid = costs.pays(AttentionSize(seen, width, queries=asked, alone=True, dtype=form.q.dtype.name.lower()))
        return "" if paid else f"{odd_size(form)}, and {asked} queries are too few for onnxopt's kernel"


def _joins_heads(attended: ir.Value) -> bool:
    """Whether nothing but a Transpose and a Reshape to (B, S, N V) reads a result (B, N, S, V)."""
    for op_type in ("Transpose", "Reshape"):
        if len(attended.uses()) != 1 or attended.is_graph_output():
            return False
        ((node, _),) = attended.uses()
        if (node.domain, node.op_type) != ("", op_type):
            return False
        if op_type == "Transpose" and node.attributes.get_ints("perm") != (0, 2, 1, 3):
            return False
        attended = node.outputs[0]
    return attended.shape is not None and len(attended.shape) == 3


PADDED = (RuleSet(lambda scope: [Rooted("MatMul", PaddedDotProduct.rule(scope.index_values))]),)
OWN_KERNEL = (RuleSet(lambda scope: [Rooted("MatMul", DotProductOfOwnKernel.rule(scope))]),)

"""Grouped-query attention: keys and values repeated for the query heads of a group are read without repeating them.

Sdpa(q, repeat(k), repeat(v)) -> Sdpa(q, k, v)
repeat(x) = Reshape(Expand(Unsqueeze(x, 2), groups), [B, N, T, H])
"""

from __future__ import annotations

from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import DOMAIN
from onnxopt.graph.shapes.value_dims import same


class GroupedHeads(RewriteRuleClassBase):
    def pattern(self, op, q, k, v, mask, axis):
        def repeat(x, name):
            expanded = op.Expand(op.Unsqueeze(x, axis), _allow_other_inputs=True, _outputs=[f"{name}_expanded"])
            return op.Reshape(expanded, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=[name])

        keys, values = repeat(k, "keys"), repeat(v, "values")
        return op.Sdpa(
            q, keys, values, _domain=DOMAIN, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"]
        )

    def check(self, context: MatchContext, q, k, v, axis, keys, values, keys_expanded, values_expanded, **_):
        result = MatchResult()
        if axis.const_value is None or axis.const_value.numpy().tolist() != [2]:
            return result.fail("Unsqueeze adds an axis other than 2, so whole heads are not what Expand repeats")
        for one, expanded, repeated in ((k, keys_expanded, keys), (v, values_expanded, values)):
            dims = [list(x.shape.dims) if x.shape is not None else [] for x in (one, expanded, repeated)]
            if [len(d) for d in dims] != [4, 5, 4] or not all(isinstance(d[1], int) for d in dims):
                return result.fail("the number of heads is not known")
            batch, heads, length, size = dims[0]
            groups = dims[1][2]
            same_dims = zip(dims[2], (batch, dims[2][1], length, size), strict=True)
            if not isinstance(groups, int) or dims[2][1] != heads * groups or not all(same(a, b) for a, b in same_dims):
                return result.fail("Expand repeats more than heads")
        return result

    def rewrite(self, op, q, k, v, y, **_):
        node = y.producer()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        return op.Sdpa(q, k, v, *node.inputs[3:], _domain=DOMAIN, **attributes)


RULES = (RuleSet(lambda _: [Rooted("Sdpa", GroupedHeads.rule())], counted=False),)

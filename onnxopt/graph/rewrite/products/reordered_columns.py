"""A product that is cut apart within groups of its columns, with the columns in the order of the parts.

    Split(Reshape(x W, [B, S, G, P w]), axis = 3)
        -> Reshape(Slice(x W', p G w, (p + 1) G w), [0, 0, G, w])      for each part p

CodeGen has q, v and k of some heads beside those of others. In the columns' new order each is a range of columns,
as attention of other models has them: kernels read it where it lies.
"""

from __future__ import annotations

import numpy as np
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention.attention_nodes import attends
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.value_dims import same

_PARTS = 3


class ReorderedColumns(RewriteRuleClassBase):
    """The rule above, for q, k and v."""

    def __init__(self, joiner: Joiner, gpu: bool) -> None:
        super().__init__()
        self._joiner, self._gpu = joiner, gpu

    def pattern(self, op, x, w):
        product = op.MatMul(x, w, _outputs=["product"])
        groups = op.Reshape(product, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["groups"])
        return op.Split(
            groups, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["first", "second", "third"]
        )

    def check(self, context: MatchContext, x, w, product, groups, first, second, third=None) -> MatchResult:
        result = MatchResult()
        if third is None:  # the matcher takes fewer outputs for a match
            return result.fail("Split has two results")
        if not is_constant(w) or len(w.uses()) != 1 or w.is_graph_output() or len(w.const_value.shape) != 2:
            return result.fail(f"the weight `{w.name}` is no constant matrix, or has other readers")
        if not attends(w.const_value.dtype, self._gpu):
            return result.fail(f"no kernel reads parts of {w.const_value.dtype} where they lie")
        if groups.shape is None or product.shape is None or len(groups.shape) != 4 or len(product.shape) != 3:
            return result.fail("the product is not known to be split into groups of columns")
        if not all(map(same, groups.shape[:2], product.shape[:2])) or groups.shape[2] == 1:
            return result.fail("the product is not known to be split into groups of columns")
        node = first.producer()
        parts = [list(part.shape)[3] if part.shape is not None else None for part in (first, second, third)]
        if node.attributes.get_int("axis", 0) not in (-1, 3) or len(set(parts)) != 1 or not isinstance(parts[0], int):
            return result.fail("Split does not cut the columns of a group into equal parts")
        return result

    def rewrite(self, op, x, w, groups, **_):
        count, width = groups.shape[2], groups.shape[3] // _PARTS
        array = w.const_value.numpy()
        reordered = array.reshape(-1, count, _PARTS, width).swapaxes(1, 2).reshape(array.shape)
        constant = self._joiner.constant(np.ascontiguousarray(reordered), w.const_value.dtype, f"{w.name}/by_part")
        product = op.MatMul(x, op.initializer(constant))
        size, view = count * width, new_integers(op, [0, 0, count, width])
        bounds = ((new_integers(op, [p * size]), new_integers(op, [(p + 1) * size])) for p in range(_PARTS))
        return [op.Reshape(op.Slice(product, begin, end, new_integers(op, [-1])), view) for begin, end in bounds]


RULES = (RuleSet(lambda scope: [Rooted("Split", ReorderedColumns.rule(scope.joiner, scope.gpu))]),)

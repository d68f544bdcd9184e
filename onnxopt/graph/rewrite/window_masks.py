"""Masks of attention in windows, added by way of a fifth dim, as masks of the scores themselves.

    Reshape(Add(Reshape(scores + bias, [B / W, W, N, S, T]), mask [1, W, 1, S, T]), [B, N, S, T])
        -> Add(scores, Tile(bias + mask, [B / W, 1, 1, 1]))

A shifted window hides keys of other windows from its queries by a mask of its own, and all windows of an image have one
table of relative positions. Both are constants.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import array_of, is_constant, rounded
from onnxopt.graph.shapes.value_dims import dims_of, same

_MOST_BYTES = 64 << 20


class WindowMask(RewriteRuleClassBase):
    def pattern(self, op, scores, bias, mask):
        biased = pattern.OrValue(
            [op.Add(scores, bias), op.Add(bias, scores), scores], tag_var="form", tag_values=["bias", "bias", "none"]
        )
        apart = op.Reshape(biased, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["apart"])
        masked = pattern.OrValue([op.Add(apart, mask), op.Add(mask, apart)])
        return op.Reshape(masked, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, scores, mask, apart, y, form, bias=None):
        result = MatchResult()
        if not is_constant(mask) or (form == "bias" and not is_constant(bias)):
            return result.fail("the mask, or the bias, is no constant")
        if any(v.shape is None for v in (scores, apart, y)) or len(scores.shape) != 4 or len(apart.shape) != 5:
            return result.fail("the scores are not known to have four dims, and five in between")
        dims, five, of_mask = dims_of(scores), dims_of(apart), mask.const_value.shape.numpy()
        if len(y.shape) != 4 or not all(same(a, b) for a, b in zip(dims, dims_of(y), strict=True)):
            return result.fail("the result has another shape than the scores")
        if len(of_mask) != 5 or of_mask[0] != 1 or not all(isinstance(d, int) for d in (dims[0], *five)):
            return result.fail("the mask does not repeat along the batch, or dims are symbolic")
        if five[0] * five[1] != dims[0] or tuple(five[2:]) != tuple(dims[1:]) or of_mask[1] != five[1]:
            return result.fail("the fifth dim does not number the windows of an image")
        if math.prod(d for d in five[1:] if isinstance(d, int)) * y.dtype.itemsize > _MOST_BYTES:
            return result.fail("the masks of all windows would be too large")
        return result

    def rewrite(self, op, scores, mask, apart, y, form, bias=None):
        five = [d for d in dims_of(apart) if isinstance(d, int)]  # all of them are
        whole = array_of(mask)[0]
        if form == "bias":
            whole = whole + array_of(bias)
        whole = np.broadcast_to(whole, (five[1], *whole.shape[1:-2], *five[3:]))
        name = f"{mask.name}/windows"
        of_windows = op.initializer(rounded(whole, y.dtype, name), name=name)
        repeats = op.Constant(value=ir.tensor([five[0], 1, 1, 1], dtype=ir.DataType.INT64))
        return op.Add(scores, op.Tile(of_windows, repeats))


RULES = (RuleSet(lambda _: [Rooted("Reshape", WindowMask.rule())]),)

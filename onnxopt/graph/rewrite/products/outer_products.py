"""A product that sums over one element is a Mul, which kernels fuse with what stands around it.

    MatMul(a, b) -> Mul(a, b)        a [..., M, 1], b [..., 1, N]

Rotary embedding multiplies positions and frequencies so. As a Mul it is part of the kernel that computes the tables of
cosines and sines, which then reads neither a table of angles nor that table's transpose.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet


class OuterProduct(RewriteRuleClassBase):
    def pattern(self, op, a, b):
        return op.MatMul(a, b)

    def check(self, context: MatchContext, a: ir.Value, b: ir.Value) -> MatchResult:
        result = MatchResult()
        sides = []
        for value in (a, b):
            if value.shape is None or len(value.shape) < 2:
                return result.fail(f"`{value.name}` is not known to be a matrix")
            sides.append(value.shape.dims[-2:])
        (rows, depth), (_, columns) = sides
        if depth != 1:
            return result.fail(f"MatMul sums over more than one element of `{a.name}`, or over an unknown number")
        if rows == 1 or columns == 1:
            return result.fail(f"`{a.name}` or `{b.name}` has one row and one column, as weights of experts have")
        return result

    def rewrite(self, op, a: ir.Value, b: ir.Value):
        return op.Mul(a, b)


RULES = (RuleSet(lambda _: [Rooted("MatMul", OuterProduct.rule())]),)

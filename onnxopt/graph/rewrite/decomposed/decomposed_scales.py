"""A scale without an offset, as Paddle's exporter writes every one: x c + 0.

    Add(x, 0) -> x

-0 + 0 is 0, so the result may be -0 where it was 0. Where something divides by it, the Add stays.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_DIVIDE_BY = {"Div": 1, "Reciprocal": 0, "Pow": 0}  # op type -> position of what may be a divisor


class AddedZero(RewriteRuleClassBase):
    """The rule above. reverse: whether the constant comes first."""

    def __init__(self, reverse: bool) -> None:
        super().__init__(f"added_zero_{int(reverse)}")
        self._reverse = reverse

    def pattern(self, op, x, zero):
        return op.Add(*((zero, x) if self._reverse else (x, zero)), _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, zero: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        number = constant(zero)
        if number is None or number.size != 1 or number.item() != 0 or x.dtype not in _FLOATS:
            return result.fail(f"`{zero.name}` is not the constant 0 of floats")
        if number.ndim and (x.shape is None or len(x.shape) < number.ndim):
            return result.fail(f"`{zero.name}` may add dims to the result")
        if y.is_graph_output():
            return result.fail("the sum is an output of the model")
        if _divides(y):
            return result.fail("something divides by the sum, and 1 / -0 is not 1 / 0")
        return result

    def rewrite(self, op, x: ir.Value, **_: ir.Value):
        return op.Identity(x)


def _divides(value: ir.Value) -> bool:
    """Whether a value or a view of it may be a divisor."""
    waiting = [value]
    while waiting:
        read = waiting.pop()
        for node, position in read.uses():
            if _DIVIDE_BY.get(node.op_type) == position:
                return True
            if node.op_type in _VIEWS and position == 0:
                waiting += node.outputs
    return False


RULES = (RuleSet(lambda _: [Rooted("Add", AddedZero.rule(reverse)) for reverse in (False, True)]),)

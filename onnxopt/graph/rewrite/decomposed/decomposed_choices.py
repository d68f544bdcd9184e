"""A choice between two values by arithmetic, as tf2onnx and Keras write it, becomes Where.

    a Cast(c) + b Cast(Not(c)) -> Where(c, a, b)                the latter factor also as 1 - Cast(c)
    a m + b -> Where(m, a, n)                                   m of 0 and 1; b is 0 where m is 1, else n, which is not

Operands may be in any order. Where the value that is not chosen is infinite or NaN, the sum is NaN, and Where is right.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet

_LARGEST = 1 << 24  # elements of a constant
_CHOSEN = frozenset({
    ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT32, ir.DataType.INT64,
})  # fmt: skip


class ChoiceByCasts(RewriteRuleClassBase):
    """The first rule. reverse: whether the term of b comes first."""

    def __init__(self, reverse: bool) -> None:
        super().__init__(f"choice_by_casts_{int(reverse)}")
        self._reverse = reverse

    def pattern(self, op, a, b, c, one):
        shown = op.Cast(c, _allow_other_attributes=True)
        hidden = pattern.OrValue([op.Cast(op.Not(c), _allow_other_attributes=True), op.Sub(one, shown)])
        terms = [_either_order(op, a, shown), _either_order(op, b, hidden)]
        return op.Add(*(reversed(terms) if self._reverse else terms), _outputs=["y"])

    def check(self, context: MatchContext, c: ir.Value, y: ir.Value, one: ir.Value | None = None, **_: ir.Value):
        if c.dtype != ir.DataType.BOOL or y.dtype not in _CHOSEN:
            return MatchResult().fail(f"`{c.name}` is {c.dtype}, and the values are {y.dtype}")
        number = constant(one)
        if one is not None and (number is None or number.size != 1 or number.item() != 1 or number.ndim):
            return MatchResult().fail(f"`{one.name}` is not the constant 1")
        return MatchResult()

    def rewrite(self, op, a: ir.Value, b: ir.Value, c: ir.Value, **_: ir.Value):
        return op.Where(c, a, b)


class ChoiceByConstants(RewriteRuleClassBase):
    """The second rule."""

    def pattern(self, op, a, m, b):
        return op.Add(op.Mul(a, m), b)

    def check(self, context: MatchContext, m: ir.Value, b: ir.Value, **_: ir.Value) -> MatchResult:
        choice = _choice(m, b)
        return MatchResult().fail(choice) if isinstance(choice, str) else MatchResult()

    def rewrite(self, op, a: ir.Value, m: ir.Value, b: ir.Value):
        choice = _choice(m, b)
        assert not isinstance(choice, str) and m.dtype is not None  # as check found
        shown, number = choice
        return op.Where(op.Constant(value=ir.tensor(shown)), a, op.Constant(value=ir.tensor(number, dtype=m.dtype)))


def _choice(m: ir.Value, b: ir.Value) -> tuple[np.ndarray, np.ndarray] | str:
    """Where a value is chosen, and the number in the other places; or why the constants are no choice."""
    factor, added = constant(m), constant(b)
    if factor is None or added is None or m.dtype not in _CHOSEN or max(factor.size, added.size) > _LARGEST:
        return f"`{m.name}` or `{b.name}` is not a constant"
    shown = factor == 1
    if shown.all() or not (shown | (factor == 0)).all():
        return f"`{m.name}` holds other numbers than 0 and 1, or 1 alone"
    try:
        shown, added = np.broadcast_arrays(shown, added)
    except ValueError:
        return "the constants do not broadcast"
    numbers = added[~shown]
    if added[shown].any() or not numbers.size or not numbers[0] or (numbers != numbers[0]).any():
        return f"`{b.name}` is not 0 where the value is chosen, and one other number elsewhere"
    return np.ascontiguousarray(shown), np.array(numbers[0])


def _either_order(op, x, factor):
    return pattern.OrValue([op.Mul(x, factor), op.Mul(factor, x)])


RULES = (
    RuleSet(
        lambda _: [
            *(Rooted("Add", ChoiceByCasts.rule(reverse)) for reverse in (False, True)),
            Rooted("Add", ChoiceByConstants.rule()),
        ]
    ),
)

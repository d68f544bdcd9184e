"""Decomposed Softmax and means, and sums of several operands, become the operators that kernels know.

    exp(x - max(x)) / sum(exp(x - max(x))) | exp(x) / sum(exp(x)) | Exp(LogSoftmax(x))      -> Softmax(x)
    ReduceSum(x) / N | ReduceSum(x) (1 / N) | ReduceSumSquare(x) / N                        -> ReduceMean(x) or of x x
    Sum(a, b, c)                                                                            -> Add(Add(a, b), c)

N is the number of elements that are added up. Softmax subtracts the largest element, so it is right too where exp(x) is
infinite, and NaN where the other forms are NaN for every x. Constants are second operands.
"""

from __future__ import annotations

import functools
import math

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes import equal_forms
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.decomposed.decomposed_activations import near
from onnxopt.graph.rewrite.rule_sets import RuleSet

_MAX_TERMS = 8  # of Sum, which our kernels add in one pass


class DecomposedSoftmax(RewriteRuleClassBase):
    """Softmax by exp and sum. form: "div", or "reciprocal" with the powers as its first or second factor."""

    def __init__(self, form: str) -> None:
        super().__init__(f"softmax_{form}")
        self._form = form

    def pattern(self, op, x):
        largest = op.ReduceMax(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["largest"])
        powers = op.Exp(pattern.OrValue([op.Sub(x, largest), x], tag_var="shifted", tag_values=[True, False]))
        total = op.ReduceSum(powers, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["total"])
        if self._form == "div":
            return op.Div(powers, total)
        inverse = op.Reciprocal(total)
        return op.Mul(powers, inverse) if self._form == "reciprocal" else op.Mul(inverse, powers)

    def check(self, context: MatchContext, x: ir.Value, total: ir.Value, shifted: bool, largest=None) -> MatchResult:
        result, rank = MatchResult(), None if x.shape is None else len(x.shape)
        reductions = [total, largest] if shifted else [total]
        axes = [_axis(value, rank) for value in reductions]
        if any(axis is None for axis in axes):
            return result.fail("the maximum or the sum is not of one constant axis with keepdims")
        if len(set(axes)) != 1:
            return result.fail("the maximum and the sum are of different axes")
        return result

    def rewrite(self, op, x: ir.Value, total: ir.Value, **_):
        return op.Softmax(x, axis=_axis(total, None if x.shape is None else len(x.shape)))


def _axis(value: ir.Value, rank: int | None) -> int | None:
    """The one axis of a reduction that keeps its dims; None for others. The last one is -1."""
    node = value.producer()
    assert node is not None
    axes = _axes(node)
    if axes is None or len(axes) != 1 or not node.attributes.get_int("keepdims", 1):
        return None
    (axis,) = axes
    if rank is None:
        return axis if axis == -1 else None
    return -1 if axis % rank == rank - 1 else axis % rank


def _axes(node: ir.Node) -> list[int] | None:
    """The axes of a reduction, which an attribute or a constant states."""
    if "axes" in node.attributes:
        return list(node.attributes.get_ints("axes", []))
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None or not is_constant(value):
        return None
    assert value.const_value is not None
    return [int(axis) for axis in value.const_value.numpy().ravel()]


class ExpOfLogSoftmax(RewriteRuleClassBase):
    def pattern(self, op, x):
        return op.Exp(op.LogSoftmax(x, _allow_other_attributes=True, _outputs=["logarithm"]))

    def rewrite(self, op, x: ir.Value, logarithm: ir.Value):
        return op.Softmax(x, axis=logarithm.producer().attributes.get_int("axis", -1))  # type: ignore[union-attr]


class MeanBySum(RewriteRuleClassBase):
    """ReduceMean by a sum and the number of elements. operator: Div, or Mul."""

    def __init__(self, operator: str, squares: bool) -> None:
        super().__init__(f"mean_by_{operator}{'_of_squares' if squares else ''}")
        self._operator, self._squares = operator, squares

    def pattern(self, op, x, count):
        reduce = op.ReduceSumSquare if self._squares else op.ReduceSum
        total = reduce(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["total"])
        return getattr(op, self._operator)(total, count)

    def check(self, context: MatchContext, x: ir.Value, count: ir.Value, total: ir.Value) -> MatchResult:
        result, axes = MatchResult(), _axes(total.producer())  # type: ignore[arg-type]
        if x.shape is None or not axes or any(not -len(x.shape) <= axis < len(x.shape) for axis in axes):
            return result.fail("the shape, or the axes, are not known")
        sizes = [size for axis in axes if isinstance(size := x.shape[axis], int) and size > 0]
        if len(sizes) != len(axes):
            return result.fail("the number of elements of the sum is not known")
        number = math.prod(sizes)
        if not near(count, number if self._operator == "Div" else 1 / number):
            return result.fail(f"the factor of the sum is not its number of elements, {number}, or the reciprocal")
        rank = len(count.const_value.shape)  # type: ignore[union-attr]
        if rank and (total.shape is None or len(total.shape) < rank):
            return result.fail(f"the constant `{count.name}` may add dims")
        return result

    def rewrite(self, op, x: ir.Value, count: ir.Value, total: ir.Value):
        node = total.producer()
        assert node is not None
        attributes = {name: a.value for name, a in node.attributes.items()}
        return op.ReduceMean(op.Mul(x, x) if self._squares else x, *node.inputs[1:], **attributes)


class SumOfSeveral(RewriteRuleClassBase):
    """Sum as a chain of Adds, which kernels take as epilogues one by one."""

    def pattern(self, op, a):
        return op.Sum(a, _allow_other_inputs=True, _outputs=["y"])

    def check(self, context: MatchContext, a: ir.Value, y: ir.Value) -> MatchResult:
        count = len(y.producer().inputs)  # type: ignore[union-attr]
        return MatchResult() if 2 < count <= _MAX_TERMS else MatchResult().fail(f"Sum has {count} operands")

    def rewrite(self, op, a: ir.Value, y: ir.Value):
        return functools.reduce(op.Add, y.producer().inputs)  # type: ignore[union-attr]


SUMS = (RuleSet(lambda _: [Rooted("Sum", SumOfSeveral.rule())]),)
RULES = (
    RuleSet(
        lambda _: [
            Rooted("Div", DecomposedSoftmax.rule("div")), Rooted("Mul", DecomposedSoftmax.rule("reciprocal")),
            Rooted("Mul", DecomposedSoftmax.rule("reciprocal first")), Rooted("Exp", ExpOfLogSoftmax.rule()),
        ]
    ),
    RuleSet(
        lambda _: [
            Rooted(operator, MeanBySum.rule(operator, squares))
            for operator in ("Div", "Mul")
            for squares in (True, False)
        ]
    ),
    RuleSet(lambda _: equal_forms.rooted(), counted=False),  # of what the rules made, and those of activations
)  # fmt: skip

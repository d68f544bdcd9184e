"""Rewrite rules that bring equal forms of one computation to one, and change no bit of any result.

    Sum(a) -> a    Sum(a, b) -> Add(a, b)
    Sub(x, c) -> Add(x, -c)    Div(x, c) -> Mul(x, 1 / c)                        floats; c constant, 1 / c exact
    Div(1, x) -> Reciprocal(x)                                                   floats
    Sub(x, Neg(y)) -> Add(x, y)    Add(x, Neg(y)) -> Sub(x, y)    Mul(x, -1) -> Neg(x)
    Cast(Cast(x) op Cast(y)) -> x op y                                           where op rounds once, to 16 bits
    Shape(Cast(x)) -> Shape(x)    Cast(ConstantOfShape(n, c)) -> ConstantOfShape(n, Cast(c))    floats

Constants are second operands, and vectors have one dim (operand_order.py). Floats are rounded as IEEE 754 says; which
bits a NaN has is left open.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleClassBase

from onnxopt.graph.passes import equal_views
from onnxopt.graph.passes.equal_views import constant_of
from onnxopt.graph.passes.masks import viewed_masks
from onnxopt.graph.passes.rooted import Rooted, RootedLater

_COPIED = 1 << 16  # bytes of a constant with other readers, of which a copy may be made
_WIDE = {
    ir.DataType.FLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.BFLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.FLOAT: (ir.DataType.DOUBLE,),
}
# Operators whose result in the wide dtype, rounded to the narrow one, is that of the narrow dtype: those that round
# once, as the wide dtype has two digits more than twice as many (Figueroa 1995), and those that do not round.
_ROUNDED_ONCE = (
    "Add", "Sub", "Mul", "Div", "Sqrt", "Max", "Min", "Relu", "Neg", "Abs", "Reciprocal",
)  # fmt: skip


def _copied(value: ir.Value) -> str:
    """Why no other constant is made of this one, or ""."""
    tensor = constant_of(value)
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 16:
        return f"`{value.name}` is not a constant of floats"
    if len(value.uses()) > 1 and tensor.nbytes > _COPIED:
        return f"the constant `{value.name}` has other readers, and a copy would make the model larger"
    return ""


def _adds_no_dims(x: ir.Value, c: ir.Value) -> bool:
    rank = 0 if c.const_value is None else len(c.const_value.shape)
    return rank == 0 or (x.shape is not None and len(x.shape) >= rank)


def _number(value: ir.Value) -> float | None:
    tensor = constant_of(value)
    return None if tensor is None or tensor.size != 1 else float(tensor.numpy().item())


class SumOfTwo(RewriteRuleClassBase):
    """`Sum(a, b) -> Add(a, b)`, and `Sum(a) -> a`."""

    def __init__(self, operands: int) -> None:
        super().__init__(f"SumOf{operands}")
        self._operands = operands

    def pattern(self, op, a, b):  # type: ignore[no-untyped-def]
        return op.Sum(a) if self._operands == 1 else op.Sum(a, b)

    def rewrite(self, op, a: ir.Value, b: ir.Value | None = None):  # type: ignore[no-untyped-def]
        return op.Identity(a) if b is None else op.Add(a, b)


class SubtractedConstant(RewriteRuleClassBase):
    """`Sub(x, c) -> Add(x, -c)` for a constant c of floats."""

    def pattern(self, op, x, c):  # type: ignore[no-untyped-def]
        return op.Sub(x, c)

    def check(self, context: MatchContext, x: ir.Value, c: ir.Value) -> MatchResult:
        reason = _copied(c)
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x: ir.Value, c: ir.Value):  # type: ignore[no-untyped-def]
        assert c.const_value is not None
        return op.Add(x, op.Constant(value=ir.tensor(-c.const_value.numpy(), dtype=c.const_value.dtype)))


class ExactQuotient(RewriteRuleClassBase):
    """`Div(x, c) -> Mul(x, 1 / c)` for a power of two c, whose reciprocal is exact."""

    def pattern(self, op, x, c):  # type: ignore[no-untyped-def]
        return op.Div(x, c)

    def check(self, context: MatchContext, x: ir.Value, c: ir.Value) -> MatchResult:
        if reason := _copied(c):
            return MatchResult().fail(reason)
        assert c.const_value is not None
        significands, exponents = np.frexp(c.const_value.numpy().astype(np.float64))
        if (np.abs(significands) != 0.5).any():
            return MatchResult().fail(f"a reciprocal of `{c.name}` is not exact")
        if (np.abs(exponents - 1) > _EXPONENTS[c.const_value.dtype]).any():
            return MatchResult().fail(f"a reciprocal of `{c.name}` is out of range")
        return MatchResult()

    def rewrite(self, op, x: ir.Value, c: ir.Value):  # type: ignore[no-untyped-def]
        assert c.const_value is not None
        inverse = (1 / c.const_value.numpy().astype(np.float64)).astype(c.const_value.dtype.numpy())
        return op.Mul(x, op.Constant(value=ir.tensor(inverse, dtype=c.const_value.dtype)))


class QuotientOfOne(RewriteRuleClassBase):
    """`Div(1, x) -> Reciprocal(x)` for floats."""

    def pattern(self, op, one, x):  # type: ignore[no-untyped-def]
        return op.Div(one, x)

    def check(self, context: MatchContext, one: ir.Value, x: ir.Value) -> MatchResult:
        if _number(one) != 1 or one.dtype is None or not one.dtype.is_floating_point():
            return MatchResult().fail(f"`{one.name}` is not the constant 1 of floats")
        return MatchResult() if _adds_no_dims(x, one) else MatchResult().fail(f"the constant `{one.name}` may add dims")

    def rewrite(self, op, one: ir.Value, x: ir.Value):  # type: ignore[no-untyped-def]
        return op.Reciprocal(x)


# Powers of two of which both the number and its reciprocal are normal.
_EXPONENTS = {ir.DataType.FLOAT16: 14, ir.DataType.BFLOAT16: 126, ir.DataType.FLOAT: 126, ir.DataType.DOUBLE: 1022}


class NegatedOperand(RewriteRuleClassBase):
    """`Sub(x, Neg(y)) -> Add(x, y)`, and `Add(x, Neg(y)) -> Sub(x, y)` in both orders."""

    def __init__(self, op_type: str, first: bool = False) -> None:
        super().__init__(f"Negated{op_type}{'First' if first else ''}")
        self._op_type, self._first = op_type, first

    def pattern(self, op, x, y):  # type: ignore[no-untyped-def]
        operator, negative = getattr(op, self._op_type), op.Neg(y)
        return operator(negative, x) if self._first else operator(x, negative)

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        return op.Add(x, y) if self._op_type == "Sub" else op.Sub(x, y)


class TimesMinusOne(RewriteRuleClassBase):
    """`Mul(x, -1) -> Neg(x)` for floats."""

    def pattern(self, op, x, c):  # type: ignore[no-untyped-def]
        return op.Mul(x, c)

    def check(self, context: MatchContext, x: ir.Value, c: ir.Value) -> MatchResult:
        if _number(c) != -1 or c.dtype is None or not c.dtype.is_floating_point():
            return MatchResult().fail(f"`{c.name}` is not the constant -1 of floats")
        return MatchResult() if _adds_no_dims(x, c) else MatchResult().fail(f"the constant `{c.name}` may add dims")

    def rewrite(self, op, x: ir.Value, c: ir.Value):  # type: ignore[no-untyped-def]
        return op.Neg(x)


class ShapeOfCast(RewriteRuleClassBase):
    """`Shape(Cast(x)) -> Shape(x)`."""

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return op.Shape(op.Cast(x, _allow_other_attributes=True), _allow_other_attributes=True, _outputs=["y"])

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        node = y.producer()
        assert node is not None
        return op.Shape(x, **{name: a.value for name, a in node.attributes.items()})


class CastOfFilled(RewriteRuleClassBase):
    """`Cast(ConstantOfShape(n, c)) -> ConstantOfShape(n, Cast(c))` where both are floats of 16 bits or more."""

    def pattern(self, op, n):  # type: ignore[no-untyped-def]
        return op.Cast(
            op.ConstantOfShape(n, _allow_other_attributes=True, _outputs=["x"]), _allow_other_attributes=True,
            _outputs=["y"],
        )  # fmt: skip

    def check(self, context: MatchContext, n: ir.Value, x: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        if any(v.dtype is None or not v.dtype.is_floating_point() or v.dtype.bitwidth < 16 for v in (x, y)):
            return result.fail("the Cast is not one of floats of 16 bits or more")
        return result.fail(f"`{x.name}` has other readers") if len(x.uses()) > 1 or x.is_graph_output() else result

    def rewrite(self, op, n: ir.Value, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        node, dtype = x.producer(), y.dtype
        assert node is not None and dtype is not None
        held = node.attributes.get("value")
        number = np.zeros(1, np.float32) if held is None else held.as_tensor().numpy()
        with np.errstate(over="ignore"):
            return op.ConstantOfShape(n, value=ir.tensor(number.astype(dtype.numpy()), dtype=dtype))


class ComputedWide(RewriteRuleClassBase):
    """`Cast(Cast(x) op Cast(y)) -> x op y` where the operator rounds once, or not at all.

    An operand may also be a constant that the narrow dtype holds.
    """

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return op.Cast(x, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        result, node = MatchResult(), x.producer()
        if node is None or node.domain != "" or node.op_type not in _ROUNDED_ONCE:
            return result.fail("what is cast is not the result of an operator that rounds once")
        if y.dtype not in _WIDE or x.dtype not in _WIDE[y.dtype]:
            return result.fail(f"Cast to {y.dtype} does not narrow floats")
        if len(x.uses()) > 1 or x.is_graph_output():
            return result.fail(f"the wide result `{x.name}` has other readers")
        if not any(_narrow(value, y.dtype) is not None for value in node.inputs if constant_of(value) is None):
            return result.fail(f"no operand of {node.op_type} comes from {y.dtype}")
        for value in node.inputs:
            if value is not None and _narrow(value, y.dtype) is None and _held(value, y.dtype) is None:
                return result.fail(f"an operand of {node.op_type} may not be a value of {y.dtype}")
        return result

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        node, dtype, operands = x.producer(), y.dtype, []
        assert node is not None and dtype is not None
        for value in node.inputs:
            narrow, tensor = _narrow(value, dtype), _held(value, dtype)
            operands.append(narrow if tensor is None else op.Constant(value=tensor))
        return getattr(op, node.op_type)(*operands, **{name: a.value for name, a in node.attributes.items()})


def _narrow(value: ir.Value | None, dtype: ir.DataType) -> ir.Value | None:
    """What a Cast makes a wide value of, where that is of this dtype."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type != "Cast" or node.inputs[0] is None:
        return None
    return node.inputs[0] if node.inputs[0].dtype == dtype else None


def _held(value: ir.Value | None, dtype: ir.DataType) -> ir.TensorProtocol | None:
    """A small constant as one of this dtype, where that holds each element."""
    tensor = constant_of(value)
    if tensor is None or tensor.nbytes > _COPIED:
        return None
    array = tensor.numpy()
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype.numpy())
    return ir.tensor(narrow, dtype=dtype) if np.array_equal(narrow.astype(array.dtype), array) else None


# Each rule with the operator that computes its pattern's result, as those of no_op_rules.py.
RULES: tuple[tuple[str, Callable[[], RewriteRule]], ...] = (
    ("Sum", lambda: SumOfTwo.rule(1)),
    ("Sum", lambda: SumOfTwo.rule(2)),
    ("Sub", lambda: NegatedOperand.rule("Sub")),
    ("Add", lambda: NegatedOperand.rule("Add")),
    ("Add", lambda: NegatedOperand.rule("Add", first=True)),
    ("Sub", SubtractedConstant.rule),
    ("Div", ExactQuotient.rule),
    ("Div", QuotientOfOne.rule),
    ("Mul", TimesMinusOne.rule),
    ("Cast", ComputedWide.rule),
    ("Cast", CastOfFilled.rule),
    ("Shape", ShapeOfCast.rule),
)


def rooted() -> list[Rooted]:
    """The rules of this file, of equal_views.py and of viewed_masks.py, made anew: matchers keep state."""
    rules = (*RULES, *equal_views.RULES, *viewed_masks.RULES)
    return [RootedLater(op_type, rule) for op_type, rule in rules]

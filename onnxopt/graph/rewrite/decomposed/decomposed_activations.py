"""Decomposed activations become the operator that kernels know.

    0 - x                                                                 -> Neg(x)
    Max(x, 0) | LeakyRelu(x; 0) | PRelu(x, 0)                             -> Relu(x)
    1 / (1 + exp(-x)) | Reciprocal(1 + exp(-x)) | tanh(x / 2) / 2 + 1 / 2 -> Sigmoid(x)
    x / (1 + exp(-x))                                                     -> x Sigmoid(x)
    x (1 + erf(x / sqrt(2))) / 2                                          -> Gelu(x)
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2                     -> Gelu(x; tanh)

Products may be in any order. Constants are the stated numbers as far as the model's dtype holds them. NaN stays NaN. At
-inf LeakyRelu and PRelu give NaN, as 0 times infinity is, and Relu gives 0; which zero results are negative may differ.
Where exp(-x) is infinite the result is 0 in both forms. x^3 may be infinite in float16, where Gelu is right too.
Constants are second operands (graph/passes/operand_order.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes import equal_forms
from onnxopt.graph.passes.operand_order import OperandOrderPass
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention.attention_operands import scalar
from onnxopt.graph.rewrite.rule_sets import Pass, RuleSet, Scope

FIRST_OPSET_OF_GELU = 20
_CUBIC = 0.044715
_FLOATS = {  # how far a number is off that was rounded, and whose reciprocal was rounded once more
    ir.DataType.FLOAT16: 2.0**-10 + 2.0**-20, ir.DataType.BFLOAT16: 2.0**-7, ir.DataType.FLOAT: 2.0**-22,
    ir.DataType.DOUBLE: 2.0**-22,
}  # fmt: skip


def near(value: ir.Value | None, number: float) -> bool:
    """Whether a constant of one element is this number, but for rounding to its dtype."""
    constant = scalar(value) if is_constant(value) else None
    precision = _FLOATS.get(value.dtype) if value is not None and value.dtype is not None else None
    return constant is not None and precision is not None and abs(constant - number) <= precision * abs(number)


def _wrong(x: ir.Value, constants: dict[str, float], match: dict[str, ir.Value]) -> str:
    """Which constant is not the stated number, or may add dims to x, or ""."""
    if x.dtype not in _FLOATS:
        return f"`{x.name}` is {x.dtype}, not a float"
    for name, number in constants.items():
        value = match.get(name)
        if value is None:
            continue
        if not near(value, number):
            return f"`{value.name}` is not the constant {number:.6g}"
        rank = len(value.const_value.shape)  # type: ignore[union-attr]
        if rank and (x.shape is None or len(x.shape) < rank):
            return f"the constant `{value.name}` may add dims"
    return ""


class ZeroMinus(RewriteRuleClassBase):
    """`Sub(0, x) -> Neg(x)`."""

    def pattern(self, op, x, zero):
        return op.Sub(zero, x)

    def check(self, context: MatchContext, x: ir.Value, zero: ir.Value) -> MatchResult:
        reason = _wrong(x, {"zero": 0.0}, {"zero": zero})
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x: ir.Value, zero: ir.Value):
        return op.Neg(x)


class OneSided(RewriteRuleClassBase):
    """Max and PRelu with a constant 0, which are Relu. A Clip from 0 is not: it makes infinity finite."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"relu_as_{op_type}")
        self._op_type = op_type

    def pattern(self, op, x, zero):
        return getattr(op, self._op_type)(x, zero)

    def check(self, context: MatchContext, x: ir.Value, zero: ir.Value) -> MatchResult:
        reason = _wrong(x, {"zero": 0.0}, {"zero": zero})
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x: ir.Value, zero: ir.Value):
        return op.Relu(x)


class FlatLeakyRelu(RewriteRuleClassBase):
    """LeakyRelu whose slope below 0 is 0."""

    def pattern(self, op, x):
        return op.LeakyRelu(x, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        alpha = y.producer().attributes.get_float("alpha", 0.01)  # type: ignore[union-attr]
        return MatchResult() if alpha == 0 else MatchResult().fail(f"the slope of LeakyRelu is {alpha}")

    def rewrite(self, op, x: ir.Value, y: ir.Value):
        return op.Relu(x)


class Logistic(RewriteRuleClassBase):
    """Sigmoid by exp. form: "reciprocal" or "div"."""

    def __init__(self, form: str) -> None:
        super().__init__(f"sigmoid_{form}")
        self._form = form

    def pattern(self, op, x, one, dividend):
        total = op.Add(op.Exp(op.Neg(x)), one)
        return op.Reciprocal(total) if self._form == "reciprocal" else op.Div(dividend, total)

    def check(self, context: MatchContext, x: ir.Value, **match: ir.Value) -> MatchResult:
        if self._form == "div" and match["dividend"] is x:
            match.pop("dividend")  # SiLU
        reason = _wrong(x, {"one": 1.0, "dividend": 1.0}, match)
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x: ir.Value, one: ir.Value, dividend: ir.Value | None = None):
        gate = op.Sigmoid(x)
        return op.Mul(x, gate) if dividend is x else gate


class LogisticByTanh(RewriteRuleClassBase):
    """Sigmoid by tanh. outside: whether 1/2 is added behind the factor."""

    def __init__(self, outside: bool) -> None:
        super().__init__("sigmoid_by_tanh")
        self._outside = outside

    def pattern(self, op, x, half, factor, shift):
        tanh = op.Tanh(op.Mul(x, half))
        return op.Add(op.Mul(tanh, factor), shift) if self._outside else op.Mul(op.Add(tanh, shift), factor)

    def check(self, context: MatchContext, x: ir.Value, **match: ir.Value) -> MatchResult:
        reason = _wrong(x, {"half": 0.5, "factor": 0.5, "shift": 0.5 if self._outside else 1.0}, match)
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x: ir.Value, **_: ir.Value):
        return op.Sigmoid(x)


class DecomposedGelu(RewriteRuleClassBase):
    """Gelu. order: of the last product. tanh: the approximation by tanh in place of erf."""

    def __init__(self, order: str, tanh: bool) -> None:
        super().__init__(f"gelu_{order}{'_tanh' if tanh else ''}")
        self._order, self._tanh = order, tanh

    def pattern(self, op, x, half, one, factor, per_factor, cubic, per_cubic, three, unit):
        if self._tanh:
            inner = op.Tanh(_tanh_argument(op, x, (factor, per_factor), (cubic, per_cubic), three, unit))
        else:
            inner = op.Erf(_scaled(op, x, factor, per_factor))
        total = op.Add(inner, one)
        halves = {
            "half of x": (op.Mul(x, half), total),
            "half of the sum": (x, op.Mul(total, half)),
        }
        if self._order.startswith("half of the product"):
            first, second = (x, total) if self._order.endswith("x first") else (total, x)
            return op.Mul(op.Mul(first, second), half)
        name, _, turned = self._order.partition(", ")
        first, second = reversed(halves[name]) if turned else halves[name]
        return op.Mul(first, second)

    def check(self, context: MatchContext, x: ir.Value, **match) -> MatchResult:
        if context.model.opset_imports.get("", 0) < FIRST_OPSET_OF_GELU:
            return MatchResult().fail(f"Gelu takes opset {FIRST_OPSET_OF_GELU}")
        factor = math.sqrt(2 / math.pi) if self._tanh else math.sqrt(0.5)
        constants = {"half": 0.5, "one": 1.0, "factor": factor, "per_factor": 1 / factor, "three": 3.0, "unit": 1.0}
        constants |= {"cubic": _CUBIC, "per_cubic": 1 / _CUBIC}
        reason = _wrong(x, constants, match)
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x: ir.Value, **_):
        return op.Gelu(x, approximate="tanh") if self._tanh else op.Gelu(x)


def _scaled(op, x, factor, divisor):
    return pattern.OrValue([op.Mul(x, factor), op.Div(x, divisor)])


def _tanh_argument(op, x, factors, cubics, three, unit):
    """sqrt(2 / pi) (x + c x^3), or sqrt(2 / pi) x (1 + c x^2). factors, cubics: each factor, and as a divisor."""
    square, little = op.Mul(x, x), _scaled(op, x, *cubics)
    cube = pattern.OrValue([op.Pow(x, three), op.Mul(square, x), op.Mul(x, square)])
    power = pattern.OrValue([_scaled(op, cube, *cubics), op.Mul(op.Mul(little, x), x), op.Mul(x, op.Mul(x, little))])
    inner = pattern.OrValue([op.Add(x, power), op.Add(power, x)])
    grown = op.Add(pattern.OrValue([_scaled(op, square, *cubics), op.Mul(little, x), op.Mul(x, little)]), unit)
    outer, much = _scaled(op, x, *factors), _scaled(op, grown, *factors)
    products = [op.Mul(outer, grown), op.Mul(grown, outer), op.Mul(x, much), op.Mul(much, x)]
    scaled = [_scaled(op, product, *factors) for product in (inner, op.Mul(x, grown), op.Mul(grown, x))]
    return pattern.OrValue([*scaled, *products])


ORDERS = (
    "half of x", "half of x, turned", "half of the sum", "half of the sum, turned", "half of the product, x first",
    "half of the product, x last",
)  # fmt: skip
_RELUS = ("Max", "PRelu")


def _gelu(tanh: bool) -> Callable[[Scope], list[Rooted]]:
    """The rules, where the graph has what they look for: they cost more than others at every Mul."""
    inner = "Tanh" if tanh else "Erf"

    def rules(scope: Scope) -> list[Rooted]:
        if not any(node.op_type == inner for node in scope.graph.all_nodes()):
            return []
        return [Rooted("Mul", DecomposedGelu.rule(order, tanh)) for order in ORDERS]

    return rules


RULES = (
    RuleSet(lambda _: [Rooted("Sub", ZeroMinus.rule()), *equal_forms.rooted()], counted=False),
    Pass(lambda model, _: OperandOrderPass()(model).modified, counted=False),  # of what these rules made
    RuleSet(
        lambda _: [
            *(Rooted(op_type, OneSided.rule(op_type)) for op_type in _RELUS), Rooted("LeakyRelu", FlatLeakyRelu.rule()),
        ]
    ),
    RuleSet(_gelu(False)),
    RuleSet(_gelu(True)),
    RuleSet(
        lambda _: [
            Rooted("Reciprocal", Logistic.rule("reciprocal")), Rooted("Div", Logistic.rule("div")),
            Rooted("Add", LogisticByTanh.rule(True)), Rooted("Mul", LogisticByTanh.rule(False)),
        ]
    ),
)  # fmt: skip

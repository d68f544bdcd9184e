"""LayerNormalization in elementary operators becomes one operator, before a model's values are lowered to 16 bits.

    Div(d, Sqrt(Add(ReduceMean(d d), e)))        -> LayerNormalization(x, 1; e)      d = Sub(x, ReduceMean(x))
    Mul(LayerNormalization(x, 1), scale)         -> LayerNormalization(x, scale)
    Add(LayerNormalization(x, scale), bias)      -> LayerNormalization(x, scale, bias)
    Mul(Div(Sub(.), Sqrt(.)), scale [N])         -> Mul(Div(Sub(.), Sqrt(.)), scale [1, N])         what is left

of the last axis, which has a known size. ONNX Runtime's LayerNormFusion makes the same of the nodes, but takes in the
Casts that stand at their borders, and so writes a node whose operands have two dtypes, which it then refuses to open.
The norm without a mean stays: ONNX has no operator for it in the opset of our models, and ONNX Runtime's has separate
types for its operands.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleClassBase, RewriteRuleSet, pattern

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import array_of

SINCE = 17  # opset of LayerNormalization
_AXES_ARE_INPUTS = 18  # opset of ReduceMean
_NORM = "LayerNormalization"


class _Core(RewriteRuleClassBase):
    """The norm without scale and bias, as a Div or a Mul.

    The deviation is divided by Sqrt or Pow(., 0.5), or multiplied by the Reciprocal, by 1 / it, or by Pow(., -0.5).
    """

    def __init__(self, root: str, axes_are_inputs: bool) -> None:
        super().__init__(f"SpelledLayerNorm{root}")
        self._root, self._axes_are_inputs = root, axes_are_inputs

    def pattern(self, op, x, epsilon):  # type: ignore[no-untyped-def]
        deviation = op.Sub(x, self._mean(op, x, "first"), _outputs=["deviation"])
        square = pattern.OrValue([op.Mul(deviation, deviation), op.Pow(deviation, pattern.Var("two"))])
        shifted = op.Add(self._mean(op, square, "second"), epsilon)
        root = pattern.OrValue([op.Sqrt(shifted), op.Pow(shifted, pattern.Var("half"))])
        if self._root == "Div":
            return op.Div(deviation, root)
        inverse = [op.Reciprocal(root), op.Div(pattern.Var("one"), root), op.Pow(shifted, pattern.Var("minus_half"))]
        return op.Mul(deviation, pattern.OrValue(inverse))

    def _mean(self, op, value, name):  # type: ignore[no-untyped-def]
        """A mean over any axes: `_axes` reads them off the node."""
        others = [pattern.Var(f"axes_{name}")] if self._axes_are_inputs else []
        return op.ReduceMean(value, *others, _allow_other_attributes=True, _outputs=[f"mean_{name}"])

    def check(
        self,
        context: MatchContext,
        x: ir.Value,
        epsilon: ir.Value,
        mean_first: ir.Value,
        mean_second: ir.Value,
        **constants: ir.Value | None,
    ) -> MatchResult:
        result = MatchResult()
        if x.dtype != ir.DataType.FLOAT or x.shape is None or not isinstance(x.shape[-1], int):
            return result.fail(f"`{x.name}` is not float32, or the size of its last axis is not known")
        for name, wanted in (("two", 2.0), ("half", 0.5), ("one", 1.0), ("minus_half", -0.5)):
            constant = constants.get(name)
            if constant is not None and number_of(constant) != wanted:
                return result.fail(f"`{constant.name}` is not {wanted:g}")
        if number_of(epsilon) is None:
            return result.fail(f"`{epsilon.name}` is not a constant of one element")
        for mean in (mean_first, mean_second):
            if _axes(mean, self._axes_are_inputs) not in ((-1,), (len(x.shape) - 1,)):
                return result.fail(f"`{mean.name}` is not the mean of the last axis alone, of one element")
        return result

    def rewrite(self, op, x: ir.Value, epsilon: ir.Value, **_: ir.Value):  # type: ignore[no-untyped-def]
        assert x.shape is not None and isinstance(x.shape[-1], int)
        ones = op.initializer(ir.Tensor(np.ones(x.shape[-1], np.float32)), name=f"{x.name}/ones")
        return op.LayerNormalization(x, ones, axis=-1, epsilon=number_of(epsilon))


class _Operand(RewriteRuleClassBase):
    """A factor or a term of one value for each column becomes an operand of the norm."""

    def _normed(self, op, *operands):  # type: ignore[no-untyped-def]
        return op.LayerNormalization(*operands, _allow_other_attributes=True, _outputs=["normed"])

    def _obstacle(self, normed: ir.Value, operand: ir.Value) -> str:
        norm = normed.producer()
        assert norm is not None
        scale = norm.inputs[1]
        if len(normed.uses()) != 1 or normed.is_graph_output() or any(v.uses() for v in norm.outputs[1:]):
            return f"`{normed.name}` has other readers"
        if norm.attributes.get_int("axis", -1) != -1 or scale is None or scale.shape is None:
            return "the norm is not of the last axis"
        size = scale.shape[-1]
        if operand.dtype != normed.dtype or operand.shape is None or not isinstance(size, int):
            return f"the dtype or the shape of `{operand.name}` is not known"
        leading, last = list(operand.shape)[:-1], list(operand.shape)[-1:]
        if last != [size] or any(dim != 1 for dim in leading):
            return f"`{operand.name}` has not one value for each of {size} columns"
        rank = len(normed.shape) if normed.shape is not None else 0
        if leading and (not is_constant(operand) or len(operand.shape) > rank):
            return f"`{operand.name}` is no constant, or adds dims"
        return ""

    def _flat(self, op, operand: ir.Value) -> ir.Value:  # type: ignore[no-untyped-def]
        """The operand with one dim."""
        assert operand.shape is not None
        if len(operand.shape) == 1:
            return operand
        array = array_of(operand).reshape(-1).astype(np.float32)
        return op.initializer(ir.Tensor(array), name=f"{operand.name}/flat")  # type: ignore[no-any-return]


class _Scaled(_Operand):
    """Mul(LayerNormalization(x, 1), scale)."""

    def pattern(self, op, x, ones, scale):  # type: ignore[no-untyped-def]
        return op.Mul(self._normed(op, x, ones), scale)

    def check(
        self, context: MatchContext, normed: ir.Value, ones: ir.Value, scale: ir.Value, **_: ir.Value
    ) -> MatchResult:
        result = MatchResult()
        if obstacle := self._obstacle(normed, scale):
            return result.fail(obstacle)
        if not is_constant(ones) or (array_of(ones) != 1).any():
            return result.fail("the norm has a scale")
        return result

    def rewrite(self, op, x: ir.Value, normed: ir.Value, scale: ir.Value, **_: ir.Value):  # type: ignore[no-untyped-def]
        norm = normed.producer()
        assert norm is not None
        return op.LayerNormalization(x, self._flat(op, scale), **norm.attributes)


class _Shifted(_Operand):
    """Add(LayerNormalization(x, scale), bias)."""

    def pattern(self, op, x, scale, bias):  # type: ignore[no-untyped-def]
        return op.Add(self._normed(op, x, scale), bias)

    def check(self, context: MatchContext, normed: ir.Value, bias: ir.Value, **_: ir.Value) -> MatchResult:
        result = MatchResult()
        obstacle = self._obstacle(normed, bias)
        return result.fail(obstacle) if obstacle else result

    def rewrite(self, op, x: ir.Value, normed: ir.Value, scale: ir.Value, bias: ir.Value):  # type: ignore[no-untyped-def]
        norm = normed.producer()
        assert norm is not None
        return op.LayerNormalization(x, scale, self._flat(op, bias), **norm.attributes)


class _Apart(RewriteRuleClassBase):
    """Mul(Div(Sub(.), Sqrt(.)), scale): a norm that stays, whose scale gets a dim of 1, so that nothing fuses it."""

    def pattern(self, op, n, scale):  # type: ignore[no-untyped-def]
        return op.Mul(n, scale)

    def check(self, context: MatchContext, n: ir.Value, scale: ir.Value) -> MatchResult:
        result = MatchResult()
        div = n.producer()
        operands = [] if div is None or div.op_type != "Div" else [v.producer() for v in div.inputs if v is not None]
        if [node.op_type for node in operands if node is not None] != ["Sub", "Sqrt"]:
            return result.fail(f"`{n.name}` is no deviation by the square root of a variance")
        if not is_constant(scale) or scale.shape is None or len(scale.shape) != 1:
            return result.fail(f"`{scale.name}` is no constant of one dim")
        if n.shape is None or len(n.shape) == 1:
            return result.fail(f"`{n.name}` has one dim, or its rank is not known")
        return result

    def rewrite(self, op, n: ir.Value, scale: ir.Value):  # type: ignore[no-untyped-def]
        assert scale.const_value is not None
        row = ir.Tensor(scale.const_value.numpy().reshape(1, -1))
        return op.Mul(n, op.initializer(row, name=f"{scale.name}/row"))


def number_of(value: ir.Value) -> float | None:
    """The number that a constant of one element and at most one dim holds."""
    tensor = value.const_value
    return float(tensor.numpy().item()) if tensor is not None and is_constant(value) and tensor.size == 1 else None


def _axes(mean: ir.Value, are_inputs: bool) -> tuple[int, ...]:
    """The axes of a ReduceMean that keeps them; () where they are not constant."""
    node = mean.producer()
    assert node is not None
    if node.attributes.get_int("keepdims", 1) != 1:
        return ()
    if not are_inputs:
        return tuple(node.attributes.get_ints("axes", ()))
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    return tuple(axes.const_value.numpy().tolist()) if axes is not None and axes.const_value is not None else ()


def rules_for(opset: int) -> list[RuleSet]:
    """The rules for models of this opset, in the order in which they apply."""
    if opset < SINCE:
        return []

    def rows(op_type: str, rule: RewriteRule) -> list[Rooted]:
        return [Rooted(op_type, each) for each in RewriteRuleSet([rule], commute=True).rules]

    def core() -> list[Rooted]:
        return [row for root in ("Div", "Mul") for row in rows(root, _Core.rule(root, opset >= _AXES_ARE_INPUTS))]

    return [
        RuleSet(lambda _: core()),
        RuleSet(lambda _: rows("Mul", _Scaled.rule())),
        RuleSet(lambda _: rows("Add", _Shifted.rule())),
        RuleSet(lambda _: rows("Mul", _Apart.rule())),
    ]

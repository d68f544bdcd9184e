"""Rewrite rules that remove work and change no bit of any result.

    x * 1 -> x    x / 1 -> x    x - 0 -> x    i + 0 -> i                        i an integer
    Reshape | Expand | Slice | Flatten | Tile (x) -> x                           where the result has x's shape
    Pad(x, pads) -> x                                                            where every pad is 0
    Cast(Cast(x, wide), to) -> Cast(x, to)                                       where wide holds every value of x
    CastLike(x, y) -> Cast(x, to)                                                where y's dtype is known
    Reshape(Reshape(x)) -> Reshape(x)    Transpose(Transpose(x)) -> Transpose(x)    Unsqueeze twice -> once
    Reshape(x, computed) -> Reshape(x, constant)                 where all dims but one are numbers or x's own

Left out of onnxscript's default rules, with the reason:
- mul_by_1, add_0, ...: they compare with a tolerance of 1e-5 relative and 1e-8 absolute, so `x + 1e-9` before a Log
  disappears, and -0.0 + 0 is 0.0;
- cast_cast: also where the two roundings differ (float64 or int64 to float32 to float16);
- relu/clip and min/max merging, slices to Split: NaN handling, and fusible nodes become ones that are not;
- BatchNormalization, Pad and bias into Conv or Gemm: they read and rewrite weights; runtimes do these at load;
- gemm to MatMul + Add, Flatten to Reshape, MatMul with Reshapes: they undo forms that runtimes match.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnxscript.rewriter import (
    MatchContext,
    MatchResult,
    RewritePass,
    RewriteRule,
    RewriteRuleClassBase,
    RewriteRuleSet,
)
from onnxscript.rewriter.rules import common
from onnxscript.rewriter.rules.common._basic_rules import ReshapeReshape

from onnxopt.graph.passes import equal_forms
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.shapes.checked_sizes import is_check
from onnxopt.graph.shapes.value_dims import reshape_to

# Every value of the key is one of each of the dtypes.
_HOLDS = {
    ir.DataType.FLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.BFLOAT16: {ir.DataType.FLOAT, ir.DataType.DOUBLE},
    ir.DataType.FLOAT: {ir.DataType.DOUBLE},
    ir.DataType.INT32: {ir.DataType.INT64},
    ir.DataType.BOOL: {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT16, ir.DataType.FLOAT},
}


class NeutralOperand(RewriteRuleClassBase):
    """`x op c -> x` for a constant c of one element that is exactly the neutral element, and adds no dims."""

    def __init__(self, op_type: str, neutral: int, *, commutes: bool = False, integers: bool = False) -> None:
        super().__init__(f"{op_type}{neutral}{'Reversed' if commutes else ''}")
        self._op_type, self._neutral, self._commutes, self._integers = op_type, neutral, commutes, integers

    def pattern(self, op, x, c):  # type: ignore[no-untyped-def]
        operator = getattr(op, self._op_type)
        return operator(c, x) if self._commutes else operator(x, c)

    def check(self, context: MatchContext, x: ir.Value, c: ir.Value) -> MatchResult:
        result = MatchResult()
        tensor = c.const_value
        if tensor is None or tensor.size != 1:
            return result.fail(f"`{c.name}` is not a constant of one element")
        if tensor.numpy().item() != self._neutral:
            return result.fail(f"the constant `{c.name}` is not {self._neutral}")
        if len(tensor.shape) and (x.shape is None or len(x.shape) < len(tensor.shape)):
            return result.fail(f"the constant `{c.name}` may add dims to the result")
        if self._integers and not tensor.dtype.is_integer():
            return result.fail("adding 0 to -0.0 gives 0.0")
        return result

    def rewrite(self, op, x: ir.Value, c: ir.Value):  # type: ignore[no-untyped-def]
        return op.Identity(x)


class SameShape(RewriteRuleClassBase):
    """`Op(x, ...) -> x` where Op only moves elements, and the result is known to have x's shape."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"SameShape{op_type}")
        self._op_type = op_type

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return getattr(op, self._op_type)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        if x.shape is None or y.shape is None or x.shape.dims != y.shape.dims:
            return result.fail(f"{self._op_type} gives another shape, or one of the two shapes is not known")
        if any(isinstance(dim, ir.SymbolicDim) and dim.value is None for dim in x.shape):
            return result.fail("a dim has no name, so the two may differ")
        node = y.producer()
        if is_check(node):
            return result.fail("it checks the sizes of an input")
        if self._op_type == "Slice" and node is not None and not _forward(node):
            return result.fail("Slice may reverse its input")
        return result

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        return op.Identity(x)


def _forward(node: ir.Node) -> bool:
    """Whether every step of a Slice is known to be 1."""
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    steps = node.inputs[4].const_value
    return steps is not None and all(step == 1 for step in steps.numpy().flat)


class NoPads(RewriteRuleClassBase):
    """`Pad(x, pads) -> x` where every pad is 0."""

    def pattern(self, op, x, pads):  # type: ignore[no-untyped-def]
        return op.Pad(x, pads, _allow_other_inputs=True, _allow_other_attributes=True)

    def check(self, context: MatchContext, x: ir.Value, pads: ir.Value) -> MatchResult:
        if pads.const_value is None or pads.is_graph_input() or pads.const_value.numpy().any():
            return MatchResult().fail("a pad may be other than 0")
        return MatchResult()

    def rewrite(self, op, x: ir.Value, pads: ir.Value):  # type: ignore[no-untyped-def]
        return op.Identity(x)


class LosslessCast(RewriteRuleClassBase):
    """`Cast(Cast(x, wide), to) -> Cast(x, to)` where the first Cast loses nothing."""

    def pattern(self, op, x, wide, to):  # type: ignore[no-untyped-def]
        return op.Cast(op.Cast(x, to=wide), to=to)

    def check(self, context: MatchContext, x: ir.Value, wide: ir.Attr, to: ir.Attr) -> MatchResult:
        if x.dtype is None or ir.DataType(wide.as_int()) not in _HOLDS.get(x.dtype, ()):
            return MatchResult().fail("the first Cast may round")
        if ir.DataType(to.as_int()) == ir.DataType.STRING:
            return MatchResult().fail("Cast to string writes other digits for another dtype")
        return MatchResult()

    def rewrite(self, op, x: ir.Value, wide: ir.Attr, to: ir.Attr):  # type: ignore[no-untyped-def]
        return op.Cast(x, to=to.as_int())


class KnownCastLike(RewriteRuleClassBase):
    """`CastLike(x, y) -> Cast(x, to)` where y's dtype is known."""

    def pattern(self, op, x, like):  # type: ignore[no-untyped-def]
        return op.CastLike(x, like)

    def check(self, context: MatchContext, x: ir.Value, like: ir.Value) -> MatchResult:
        if like.dtype is None or x.dtype is None:
            return MatchResult().fail("the dtype of an operand of CastLike is not known")
        return MatchResult()

    def rewrite(self, op, x: ir.Value, like: ir.Value):  # type: ignore[no-untyped-def]
        assert like.dtype is not None
        return op.Cast(x, to=like.dtype)


class ComputedReshape(RewriteRuleClassBase):
    """`Reshape(x, computed) -> Reshape(x, constant)` where all dims of the result but one are numbers or x's own.

    In the constant, 0 stands for x's own dim at the same place, and -1 for the one dim that is left.
    """

    def pattern(self, op, x, shape):  # type: ignore[no-untyped-def]
        return op.Reshape(x, shape, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, shape: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        if shape.const_value is not None:
            return result.fail(f"the shape `{shape.name}` is a constant already")
        if y.shape is None:
            return result.fail("several dims of the result are not known")
        dims = reshape_to(x, y.shape)
        return result.fail(dims) if isinstance(dims, str) else result

    def rewrite(self, op, x: ir.Value, shape: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        assert y.shape is not None
        return op.Reshape(x, op.Constant(value=ir.tensor(reshape_to(x, y.shape), dtype=ir.DataType.INT64)))


class MergedReshapes(ReshapeReshape):
    """`Reshape(Reshape(x)) -> Reshape(x)`; a Reshape that checks sizes of an input stays (shapes/checked_sizes.py)."""

    def check(self, context: MatchContext, x: ir.Value, shape_ignored: ir.Value, shape: ir.Value) -> MatchResult:
        inner = context.root.inputs[0]
        if inner is not None and is_check(inner.producer()):
            return MatchResult().fail("the inner Reshape checks the sizes of an input")
        return super().check(context, x, shape_ignored, shape)

    def rewrite(self, op, x: ir.Value, shape_ignored: ir.Value, shape: ir.Value):  # type: ignore[no-untyped-def]
        taken = () if x.graph is None else x.graph.initializers  # a rule's initializer replaces one of its name
        while self._new_shape_name in taken:
            self._new_shape_name += "_"
        return super().rewrite(op, x, shape_ignored, shape)


def no_op_rules() -> RewritePass:
    """The pass that applies the rules of this file and of equal_forms.py.

    They need shapes, and are written for opset 13 and later.
    """
    rules = [*(Rooted(op_type, rule()) for op_type, rule in RULES), *equal_forms.rooted()]
    return RewritePass(RewriteRuleSet(rules))  # type: ignore[arg-type]


# Each rule with the operator that computes its pattern's result. Each pass makes its own: matchers keep state.
RULES: tuple[tuple[str, Callable[[], RewriteRule]], ...] = (
    ("Mul", lambda: NeutralOperand.rule("Mul", 1)),
    ("Mul", lambda: NeutralOperand.rule("Mul", 1, commutes=True)),
    ("Div", lambda: NeutralOperand.rule("Div", 1)),
    ("Sub", lambda: NeutralOperand.rule("Sub", 0)),
    ("Add", lambda: NeutralOperand.rule("Add", 0, integers=True)),
    ("Add", lambda: NeutralOperand.rule("Add", 0, commutes=True, integers=True)),
    ("Reshape", lambda: SameShape.rule("Reshape")),
    ("Expand", lambda: SameShape.rule("Expand")),
    ("Slice", lambda: SameShape.rule("Slice")),
    ("Flatten", lambda: SameShape.rule("Flatten")),
    ("Tile", lambda: SameShape.rule("Tile")),
    ("Pad", NoPads.rule),
    ("Cast", LosslessCast.rule),
    ("CastLike", KnownCastLike.rule),
    ("Reshape", ComputedReshape.rule),
    ("Reshape", MergedReshapes.rule),
    ("Reshape", lambda: common.squeeze_reshape_1d_rule),
    ("Transpose", lambda: common.no_op_transpose_rule),
    ("Transpose", lambda: common.transpose_transpose_rule),
    ("Unsqueeze", lambda: common.unsqueeze_unsqueeze_rule),
)

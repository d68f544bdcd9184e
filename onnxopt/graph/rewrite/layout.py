"""Rules on Reshapes and Transposes around attention: one form before it is recognised, nothing that cancels afterwards.

Reshape(Transpose(Reshape(x, [B N, T, H]), [0, 2, 1]), [B, N, H, T]) -> Transpose(x, [0, 1, 3, 2])
Reshape(Reshape(x)) -> x                                   where the result has x's shape; also of Flatten
Transpose(Transpose(x)) -> Transpose(x) or x
Transpose(Where(hidden, 0, Transpose(x))) -> Where(Transpose(hidden), 0, x)
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase
from onnxscript.rewriter.rules import common

from onnxopt.graph.passes.codes.moved_codes import MoveCodesPass
from onnxopt.graph.passes.no_op_rules import MergedReshapes, SameShape
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import Pass, RuleSet
from onnxopt.graph.shapes.value_dims import same


class TransposeInThreeDims(RewriteRuleClassBase):
    """Keys as torch's exporter transposes them: batch and heads are joined to one dim, and split again afterwards."""

    def pattern(self, op, x, inner, outer):
        flat = op.Reshape(x, inner, _allow_other_attributes=True, _outputs=["flat"])
        return op.Reshape(op.Transpose(flat, perm=[0, 2, 1]), outer, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, flat: ir.Value, y: ir.Value, **_: ir.Value) -> MatchResult:
        result = MatchResult()
        if x.shape is None or flat.shape is None or y.shape is None or len(y.shape) != 4 or len(flat.shape) != 3:
            return result.fail("the shapes of the two Reshapes are not known")
        if not (same(flat.shape[1], y.shape[3]) and same(flat.shape[2], y.shape[2])):
            return result.fail("the three nodes do more than to transpose the last two dims")
        if self._straight(x, y) is None and sum(not isinstance(d, int) for d in y.shape) > 1:
            return result.fail("more than one dim of the result is symbolic, and x has other dims")
        return result

    def _straight(self, x: ir.Value, y: ir.Value) -> ir.Value | None:
        """x, where it has y's dims with the last two swapped, else None."""
        assert x.shape is not None and y.shape is not None
        wanted = (y.shape[0], y.shape[1], y.shape[3], y.shape[2])
        fits = len(x.shape) == 4 and all(same(a, b) for a, b in zip(x.shape, wanted, strict=True))
        return x if fits else None

    def rewrite(self, op, x: ir.Value, y: ir.Value, **_: ir.Value):
        assert y.shape is not None
        source = self._straight(x, y)
        if source is None:
            dims = [d if isinstance(d, int) else -1 for d in (y.shape[0], y.shape[1], y.shape[3], y.shape[2])]
            source = op.Reshape(x, op.Constant(value=ir.tensor(dims, dtype=ir.DataType.INT64)))
        return op.Transpose(source, perm=[0, 1, 3, 2])


class ReshapeThereAndBack(RewriteRuleClassBase):
    """`Reshape(Reshape(x)) -> x` where the result has x's shape. inner: the first operator, which may be Flatten."""

    def __init__(self, inner: str) -> None:
        super().__init__(f"reshape_of_{inner}")
        self._inner = inner

    def pattern(self, op, x):
        inner = getattr(op, self._inner)(x, _allow_other_inputs=True, _allow_other_attributes=True)
        return op.Reshape(inner, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        if x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
            return MatchResult().fail("the ranks of x and of the result differ, or are not known")
        if not all(same(a, b) for a, b in zip(x.shape, y.shape, strict=True)):
            return MatchResult().fail("the result is not known to have x's shape")
        return MatchResult()

    def rewrite(self, op, x: ir.Value, y: ir.Value):
        return op.Identity(x)


class TransposedGuard(RewriteRuleClassBase):
    """`Transpose(Where(hidden, 0, Transpose(x))) -> Where(Transpose(hidden), 0, x)`, where both swap dims 1 and 2."""

    def pattern(self, op, hidden, zero, x):
        guarded = op.Where(hidden, zero, op.Transpose(x, perm=[0, 2, 1, 3]))
        return op.Transpose(guarded, perm=[0, 2, 1, 3])

    def check(self, context: MatchContext, hidden: ir.Value, zero: ir.Value, x: ir.Value) -> MatchResult:
        if hidden.shape is None or len(hidden.shape) != 4 or zero.const_value is None or zero.const_value.size != 1:
            return MatchResult().fail("the condition is not known to have four dims")
        return MatchResult()

    def rewrite(self, op, hidden: ir.Value, zero: ir.Value, x: ir.Value):
        return op.Where(op.Transpose(hidden, perm=[0, 2, 1, 3]), zero, x)


def count_axes_from_the_end(model: ir.Model) -> int:
    """Let each Softmax, LogSoftmax and Concat along the last of its operands' axes say -1. Returns how many.

    Without an axis it is along the last one (opset 13).
    """
    count = 0
    for node in model.graph.all_nodes():
        operand = node.inputs[0] if node.op_type in _ONE_AXIS and node.domain == "" else None
        rank = None if operand is None or operand.shape is None else len(operand.shape)
        stated = "axis" in node.attributes
        if operand is not None and (not stated or (rank is not None and node.attributes.get_int("axis") == rank - 1)):
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
            count += 1
    return count


_ONE_AXIS = frozenset({"Softmax", "LogSoftmax", "Concat"})
AXES = (Pass(lambda model, _: count_axes_from_the_end(model), counted=False),)
BEFORE_RECOGNITION = (RuleSet(lambda _: [Rooted("Reshape", TransposeInThreeDims.rule())]),)
CANCELLING = (  # in one pass, since each rule may leave what another one removes
    RuleSet(
        lambda _: [
            Rooted("Transpose", TransposedGuard.rule()),
            Rooted("Transpose", common.transpose_transpose_rule),
            Rooted("Transpose", common.no_op_transpose_rule),
            *(Rooted("Reshape", ReshapeThereAndBack.rule(inner)) for inner in ("Reshape", "Flatten")),
            Rooted("Reshape", SameShape.rule("Reshape")),
            Rooted("Reshape", MergedReshapes.rule()),
        ],
        counted=False,
    ),
)
CODES = (Pass(lambda model, _: MoveCodesPass()(model).modified, counted=False),)

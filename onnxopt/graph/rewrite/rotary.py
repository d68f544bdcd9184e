"""Rotary embedding over the halves of a head, as transformers writes it, to one Rotary.

    Add(Mul(x, cos), Mul(Concat(Neg(x[..., H/2:]), x[..., :H/2]), sin)) -> Rotary(x, cos, sin)
    a, b = Split(x)    Concat(a cos - b sin, b cos + a sin) -> Rotary(x, [cos cos], [sin sin])

cos and sin hold each angle twice, once for either half. The rule checks it, because runtimes' operators take one half.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import DOMAIN

_ELEMENTWISE_OR_COPY = frozenset({"Cast", "Cos", "Sin", "Unsqueeze", "Identity", "Expand"})


class RotateHalves(RewriteRuleClassBase):
    def pattern(self, op, x, cos, sin, start1, end1, start2, end2, axis1, axis2):
        first = op.Slice(x, start1, end1, axis1, _allow_other_inputs=True)
        second = op.Slice(x, start2, end2, axis2, _allow_other_inputs=True)
        rotated = op.Concat(op.Neg(second), first, axis=-1)
        return op.Add(op.Mul(x, cos), op.Mul(rotated, sin))

    def check(self, context: MatchContext, x, cos, sin, start1, end1, start2, end2, axis1, axis2):
        result = MatchResult()
        if x.shape is None or len(x.shape) != 4 or not isinstance(x.shape[3], int) or x.shape[3] % 2:
            return result.fail(f"`{x.name}` is not known to have four dims, the last of them even", x)
        half = x.shape[3] // 2
        bounds = [_number(v) for v in (start1, end1, start2, end2)]
        if bounds[:3] != [0, half, half] or bounds[3] is None or bounds[3] < 2 * half:
            return result.fail("Slice does not cut the last axis into its two halves")
        if any(_number(axis) not in (3, -1) for axis in (axis1, axis2)):
            return result.fail("Slice does not cut the last axis")
        if any(_step(node) != 1 for node in context.nodes if node.op_type == "Slice"):
            return result.fail("Slice has a step other than 1")
        for value in (cos, sin):
            if value.shape is None or len(value.shape) != 4 or value.shape[3] != x.shape[3]:
                return result.fail(f"the table `{value.name}` has no angle for each element of a head", value)
            if value.shape[1] != 1:
                return result.fail(f"the table `{value.name}` differs from head to head", value)
            if not repeats(value):
                return result.fail(f"the two halves of the table `{value.name}` are not known to be equal", value)
        return result

    def rewrite(self, op, x, cos, sin, **_):
        return op.Rotary(x, cos, sin, _domain=DOMAIN)


class RotateParts(RewriteRuleClassBase):
    """The second spelling, whose tables have each angle once."""

    def pattern(self, op, x, cos, sin):
        first, second = op.Split(
            x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["first", "second"]
        )
        left = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
        right = op.Add(op.Mul(second, cos), op.Mul(first, sin))
        return op.Concat(left, right, axis=-1)

    def check(self, context: MatchContext, x, cos, sin, first, second):
        result = MatchResult()
        if x.shape is None or len(x.shape) != 4 or not isinstance(x.shape[3], int) or x.shape[3] % 2:
            return result.fail(f"`{x.name}` is not known to have four dims, the last of them even", x)
        half = x.shape[3] // 2
        if any(part.shape is None or list(part.shape)[3:] != [half] for part in (first, second)):
            return result.fail("Split does not cut the last axis into its two halves")
        for value in (cos, sin):
            if value.shape is None or len(value.shape) != 4 or value.shape[3] != half or value.shape[1] != 1:
                return result.fail(f"the table `{value.name}` has no angle for each pair of elements of a head", value)
        return result

    def rewrite(self, op, x, cos, sin, **_):
        return op.Rotary(x, _twice(op, cos), _twice(op, sin), _domain=DOMAIN)


def _twice(op, table: ir.Value):
    """The table with each angle twice, once for either half."""
    if table.const_value is None:
        return op.Concat(table, table, axis=-1)
    array = table.const_value.numpy()
    return op.Constant(value=ir.tensor(np.concatenate([array, array], axis=-1), dtype=table.dtype))


def repeats(value: ir.Value) -> bool:
    """Whether the two halves of a value along its last axis are known to be equal."""
    if value.const_value is not None:
        array = value.const_value.numpy()
        half = array.shape[-1] // 2
        return bool(np.array_equal(array[..., :half], array[..., half:]))
    node = value.producer()
    if node is None:
        return False
    if node.op_type == "Concat":
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and node.attributes.get_int("axis") in (
            -1, (len(value.shape) if value.shape is not None else 0) - 1,
        )  # fmt: skip
    if node.op_type == "Mul":
        factors = [v for v in node.inputs if v is not None and (v.const_value is None or v.const_value.size != 1)]
        return len(factors) == 1 and repeats(factors[0])
    return node.op_type in _ELEMENTWISE_OR_COPY and node.inputs[0] is not None and repeats(node.inputs[0])


def _number(value: ir.Value) -> int | None:
    tensor = value.const_value
    return int(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _step(node: ir.Node) -> int | None:
    return 1 if len(node.inputs) < 5 or node.inputs[4] is None else _number(node.inputs[4])


def _either_order() -> list[Rooted]:
    """The rule for both orders of each operand pair of Add and Mul."""
    rule = RotateHalves.rule()
    return [Rooted("Add", variant) for variant in (rule, *rule.commute())]


RULES = (RuleSet(lambda _: _either_order()), RuleSet(lambda _: [Rooted("Concat", RotateParts.rule())]))

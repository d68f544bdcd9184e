"""Rotary embedding over the halves of a head, as transformers writes it, to one Rotary.

    Add(Mul(x, cos), Mul(Concat(Neg(x[..., H/2:]), x[..., :H/2]), sin)) -> Rotary(x, cos, sin)
    a, b = Split(x)    Concat(a cos - b sin, b cos + a sin) -> Rotary(x, [cos cos], [sin sin])
    a, b = Split(x)    c, d = Split(cos)    e, f = Split(sin)    Concat(a c - b e, b d + a f) -> the first spelling
    a, b = Split(x)    Concat(Neg(b), a)                    -> Concat(Neg(Slice(x)), Slice(x))
    Concat(Cos(a), Cos(a))                                  -> Cos(Concat(a, a))          Sin, and Casts of both, alike

cos and sin hold each angle twice, once for either half. The rule checks it, because runtimes' operators take one half.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import DOMAIN
from onnxopt.graph.shapes.value_dims import dims_of

_ELEMENTWISE_OR_COPY = frozenset({"Cast", "Cos", "Sin", "Identity", "Expand"})


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
            if value.shape is None or not 0 < len(value.shape) <= 4 or value.shape[-1] != x.shape[3]:
                return result.fail(f"the table `{value.name}` has no angle for each element of a head", value)
            if len(value.shape) > 2 and value.shape[-3] != 1:
                return result.fail(f"the table `{value.name}` differs from head to head", value)
            if not repeats(value):
                return result.fail(f"the two halves of the table `{value.name}` are not known to be equal", value)
        return result

    def rewrite(self, op, x, cos, sin, **_):
        return op.Rotary(x, _in_four_dims(op, cos), _in_four_dims(op, sin), _domain=DOMAIN)


class SplitHalves(RewriteRuleClassBase):
    """Halves of a Split that are swapped, as Slices, which the first spelling has; kernels read one at a time."""

    def pattern(self, op, first, second):
        return op.Concat(op.Neg(second), first, axis=-1)

    def check(self, context: MatchContext, first: ir.Value, second: ir.Value) -> MatchResult:
        if any(value.producer() is None or value.producer().op_type != "Split" for value in (first, second)):  # type: ignore[union-attr]
            return MatchResult().fail("what is concatenated does not come from a Split")
        return MatchResult() if halves_of(first, second) else MatchResult().fail("Concat does not swap two halves")

    def rewrite(self, op, first: ir.Value, second: ir.Value):
        x = halves_of(first, second)
        assert x is not None
        return op.Concat(op.Neg(_half(op, x, 1)), _half(op, x, 0), axis=-1)


class DoubledTable(RewriteRuleClassBase):
    """A table that is repeated for the second half of each head: its angles are, as most exporters do."""

    def pattern(self, op, table):
        return op.Concat(table, table, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, table: ir.Value, y: ir.Value) -> MatchResult:
        node = y.producer()
        if node is None or table.shape is None or node.attributes.get_int("axis", 0) not in (-1, len(table.shape) - 1):
            return MatchResult().fail("Concat is not along the last dim")
        if _source(table) is None:
            return MatchResult().fail(f"`{table.name}` is no table of sines or cosines")
        return MatchResult()

    def rewrite(self, op, table: ir.Value, **_: ir.Value):
        return _twice(op, table)


class RotatedByParts(RewriteRuleClassBase):
    """Halves of x that are multiplied by those of both tables, as the first spelling, which computes the same."""

    def pattern(self, op, x1, x2, c1, c2, s1, s2):
        low = op.Sub(op.Mul(x1, c1), op.Mul(x2, s1))
        return op.Concat(low, op.Add(op.Mul(x2, c2), op.Mul(x1, s2)), axis=-1)

    def check(self, context: MatchContext, x1, x2, c1, c2, s1, s2) -> MatchResult:
        for one, other in ((x1, x2), (c1, c2), (s1, s2)):
            if halves_of(one, other) is None:
                return MatchResult().fail(f"`{one.name}` and `{other.name}` are not the two halves of a tensor")
        return MatchResult()

    def rewrite(self, op, x1, x2, c1, c2, s1, s2):
        x, cos, sin = (halves_of(one, other) for one, other in ((x1, x2), (c1, c2), (s1, s2)))
        assert x is not None
        turned = op.Concat(op.Neg(_half(op, x, 1)), _half(op, x, 0), axis=-1)
        return op.Add(op.Mul(x, cos), op.Mul(turned, sin))


def halves_of(first: ir.Value, second: ir.Value) -> ir.Value | None:
    """What two values are the first and the second half of, along its last dim; None for others. By Split or Slices."""
    nodes = [value.producer() for value in (first, second)]
    whole = None if nodes[0] is None or not nodes[0].inputs else nodes[0].inputs[0]
    if whole is None or whole.shape is None or any(node is None or node.domain != "" for node in nodes):
        return None
    size, last = dims_of(whole)[-1], len(whole.shape) - 1
    if not isinstance(size, int) or size % 2 or any(n.inputs[0] is not whole for n in nodes if n is not None):
        return None
    one, other = nodes
    assert one is not None and other is not None
    if one.op_type == "Split" and one is other:
        is_split = one.attributes.get_int("axis", 0) in (-1, last) and list(one.outputs) == [first, second]
        sizes = [None if v.shape is None else dims_of(v)[-1] for v in (first, second)]
        return whole if is_split and sizes == [size // 2] * 2 else None
    if any(node.op_type != "Slice" or len(node.inputs) < 4 or _step(node) != 1 for node in (one, other)):
        return None
    (start1, end1, axis1), (start2, end2, axis2) = ([_number(v) for v in n.inputs[1:4]] for n in (one, other))
    fits = (start1, end1, start2) == (0, size // 2, size // 2) and end2 is not None and end2 >= size
    return whole if fits and {axis1, axis2} <= {-1, last} else None


def _half(op, x: ir.Value, which: int):
    """The first or the second half of the last dim."""
    size = dims_of(x)[-1]
    assert isinstance(size, int)
    bounds = (which * size // 2, (1 + which) * size // 2, -1)
    return op.Slice(x, *(op.Constant(value=ir.tensor([bound], dtype=ir.DataType.INT64)) for bound in bounds))


class RotateParts(RewriteRuleClassBase):
    """The second spelling, whose tables have each angle once."""

    def pattern(self, op, first, second, cos, sin):
        left = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
        right = op.Add(op.Mul(second, cos), op.Mul(first, sin))
        return op.Concat(left, right, axis=-1)

    def check(self, context: MatchContext, first, second, cos, sin):
        result, x = MatchResult(), halves_of(first, second)
        if x is None:
            return result.fail(f"`{first.name}` and `{second.name}` are not the two halves of a tensor")
        if len(dims_of(x)) != 4:
            return result.fail(f"`{x.name}` has not four dims", x)
        for value in (cos, sin):
            if value.shape is None or not 0 < len(value.shape) <= 4 or value.shape[-1] != dims_of(first)[-1]:
                return result.fail(f"the table `{value.name}` has no angle for each pair of elements of a head", value)
            if len(value.shape) > 2 and value.shape[-3] != 1:
                return result.fail(f"the table `{value.name}` differs from head to head", value)
        return result

    def rewrite(self, op, first, second, cos, sin):
        cos, sin = (_twice(op, _in_four_dims(op, table)) for table in (cos, sin))
        return op.Rotary(halves_of(first, second), cos, sin, _domain=DOMAIN)


def _in_four_dims(op, table: ir.Value):
    """A table that broadcasts to heads, with all of their dims."""
    assert table.shape is not None
    missing = list(range(4 - len(table.shape)))
    if not missing:
        return table
    if table.const_value is not None:
        array = table.const_value.numpy()
        return op.Constant(value=ir.tensor(array.reshape((1,) * len(missing) + array.shape), dtype=table.dtype))
    shaped = op.Unsqueeze(table, op.Constant(value=ir.tensor(missing, dtype=ir.DataType.INT64)))
    shaped.shape, shaped.dtype = ir.Shape([*[1] * len(missing), *table.shape.dims]), table.dtype
    return shaped


def _twice(op, table: ir.Value):
    """The table with each angle twice, once for either half: angles are repeated, which sines and cosines share."""
    tensor, node = ir.convenience.get_const_tensor(table), table.producer()
    if tensor is None:
        source = _source(table)
        if node is None or source is None:
            return op.Concat(table, table, axis=-1)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        return getattr(op, node.op_type)(_twice(op, source), *node.inputs[1:], **attributes)
    array = tensor.numpy()
    return op.Constant(value=ir.tensor(np.concatenate([array, array], axis=-1), dtype=table.dtype))


def _source(table: ir.Value) -> ir.Value | None:
    """What a sine or cosine of angles, or a Cast or constant multiple of one, is computed from; None for others."""
    node = table.producer()
    if node is None or node.domain != "" or node.op_type not in ("Cos", "Sin", "Cast", "Mul"):
        return None
    source = node.inputs[0]
    if node.op_type in ("Cos", "Sin") or source is None:
        return source
    scalar = node.op_type == "Cast" or ((c := node.inputs[1]) is not None and _is_number(c))
    return source if scalar and _source(source) is not None else None


def _is_number(value: ir.Value) -> bool:
    return value.const_value is not None and not value.is_graph_input() and value.const_value.size == 1


def repeats(value: ir.Value, axis: int = -1) -> bool:
    """Whether the two halves of a value along an axis, counted from the last one, are known to be equal."""
    if value.const_value is not None and not value.is_graph_input():
        array = value.const_value.numpy()
        one, *other = np.split(array, 2, axis) if array.shape[axis] % 2 == 0 else [array]
        return bool(other) and bool(np.array_equal(one, other[0]))
    node = value.producer()
    if node is None or node.domain != "" or value.shape is None:
        return False
    rank = len(value.shape)
    if node.op_type == "Concat":
        along = (node.attributes.get_int("axis", 0) % rank) - rank
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and along == axis
    if node.op_type == "Mul":
        factors = [v for v in node.inputs if v is not None and (v.const_value is None or v.const_value.size != 1)]
        return len(factors) == 1 and repeats(factors[0], axis)
    if node.inputs[0] is None:
        return False
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0:
        table = node.inputs[0]
        return table.shape is not None and len(table.shape) > -axis and repeats(table, axis)
    if node.op_type == "Slice":
        cut = None if len(node.inputs) < 4 or node.inputs[3] is None else node.inputs[3].const_value
        kept = cut is not None and all(int(a) % rank != rank + axis for a in cut.numpy().ravel())
        return kept and repeats(node.inputs[0], axis)
    if node.op_type == "Transpose":
        moved = node.attributes.get_ints("perm", tuple(reversed(range(rank))))[axis]
        return repeats(node.inputs[0], moved - rank)
    if node.op_type == "Unsqueeze":
        axes = None if node.inputs[1] is None else node.inputs[1].const_value
        added = [rank + axis] if axes is None else [int(a) % rank for a in axes.numpy().ravel()]
        return rank + axis not in added and repeats(node.inputs[0], axis + sum(a > rank + axis for a in added))
    return node.op_type in _ELEMENTWISE_OR_COPY and repeats(node.inputs[0], axis)


def _number(value: ir.Value | None) -> int | None:
    tensor = None if value is None else value.const_value
    return int(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _step(node: ir.Node) -> int | None:
    return 1 if len(node.inputs) < 5 or node.inputs[4] is None else _number(node.inputs[4])


def _either_order(op_type: str, rule: RewriteRule) -> list[Rooted]:
    """The rule for both orders of each operand pair of Add and Mul."""
    return [Rooted(op_type, variant) for variant in (rule, *rule.commute())]


HALVES = (
    RuleSet(
        lambda _: [
            *_either_order("Concat", RotatedByParts.rule()),
            Rooted("Concat", SplitHalves.rule()),
            Rooted("Concat", DoubledTable.rule()),
        ],
        counted=False,
    ),
)
RULES = (
    RuleSet(lambda _: _either_order("Add", RotateHalves.rule())),
    RuleSet(lambda _: _either_order("Concat", RotateParts.rule())),
)

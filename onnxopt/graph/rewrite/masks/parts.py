"""Masks taken apart: what they show by position, which a kernel computes by itself, and what is left of them.

Where(And(near, c), 0, low)         near by position, Where(c, 0, low) is left
Where(Or(far, c), low, 0)           the same of what hides
Where(c, low, mask)                 c and the mask
Where(Cast(x), low, x)              c alone, as x is 0 elsewhere
Max(mask, low)                      the mask, where it does nothing but hide
Where(Cast(Where(c, 0, low)), ...)  c, where a bool is made of one of two numbers; Less and the like as Cast
Add(mask, bias)                     what the mask shows by position, and the bias
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.additive_masks import HIDDEN
from onnxopt.graph.rewrite.masks.index_functions import ALWAYS, FLOATS, Choice, Truth
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.masks.masks import HIDES, Mask, shown_by
from onnxopt.graph.shapes.value_dims import uniform

MIN = {ir.DataType.FLOAT: -3.4028234663852886e38, ir.DataType.FLOAT16: -65504.0, ir.DataType.BFLOAT16: -3.38e38}
LOW = {**MIN, ir.DataType.FLOAT16: HIDDEN}  # what hides a key by a condition or by its position
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "Cast": operator.ne, "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le, "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}  # fmt: skip
_PASSED = frozenset({"Cast", "Expand", "Identity", "Max", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_DEEPEST = 8
_CONCAT_AXES = {"And": False, "BitwiseAnd": False, "Or": True}  # of which both operands count; Or where it is negated


class Condition(NamedTuple):
    """A bool tensor that shows keys, or hides them where it is negated."""

    value: ir.Value
    negated: bool


class HidingMask(NamedTuple):
    """A mask that hides keys by the number `low`. shown: by position. by_others: whether others hide keys, too."""

    shown: Truth
    by_others: bool
    low: float


@dataclasses.dataclass
class Parts:
    """shown: by position. conditions: which hold together, each broadcast to the scores. added: to the scores. low: the
    least of the numbers that hidden keys get. summed: whether keys that are hidden twice get it twice. hiding: all the
    masks that hide keys. nested: whether one of them is what another shows."""

    shown: Truth = ALWAYS
    conditions: list[Condition] = dataclasses.field(default_factory=list)
    added: list[ir.Value] = dataclasses.field(default_factory=list)
    low: float = 0.0
    summed: bool = False
    hiding: list[HidingMask] = dataclasses.field(default_factory=list)
    nested: bool = False

    def weigh(self, index_values: IndexValues) -> str:
        """What queries weigh alike that see no key: "all" keys, or, of masks that are added, those that are hidden
        "once", or those of their "window"; "" where a kernel that computes the window does not tell these apart."""
        if not self.summed:
            return "all"
        others, local = [h for h in self.hiding if h.by_others], [h for h in self.hiding if not h.shown.always]
        if self.nested or len(others) != 1 or not all(h.shown.implies(self.shown) for h in local):
            return ""
        if np.isfinite(others[0].low) and sum(h.low for h in local) - others[0].low <= HIDES:
            return "window"
        left = [*(c.value for c in self.conditions), *self.added]
        dims = None if len(self.hiding) != 2 or len(left) != 1 else index_values.dims(left[0])
        is_shared = dims is not None and (1, *dims)[-2] == 1  # by queries
        return "once" if is_shared and len(local) == 1 and local[0].low == others[0].low else ""

    def by_position(self, mask: ir.Value, index_values: IndexValues) -> Mask:
        """What is shown by position. mask: that was taken apart."""
        return shown_by(self.shown, bool(np.isfinite(self.low)), mask, index_values)

    def are_shared(self, mask: ir.Value, index_values: IndexValues) -> bool:
        """Whether nothing but conditions is left, which all queries share, though the mask may differ between them."""
        dims = [index_values.dims(v) for v in (mask, *(c.value for c in self.conditions))]
        if self.summed or self.added or any(d is None for d in dims):
            return False
        mask_rows, *rest = ((1, *d)[-2] for d in dims if d is not None)
        return mask_rows != 1 and all(d == 1 for d in rest)

    def _hides_by_more(self) -> bool:
        """Whether what is added hides keys by more than their position does."""
        least = [least_of(v) for v in self.added]
        return any(n is not None and n < LOW[ir.DataType.FLOAT16] for n in least)

    def rest(self, op, dtype: ir.DataType, finite: bool) -> ir.Value | None:
        """The mask without what is shown by position, None where nothing is left. dtype: of the scores. finite: whether
        the mask is."""
        shown = None
        for condition in self.conditions:
            value = op.Not(condition.value) if condition.negated else condition.value
            shown = value if shown is None else op.And(shown, value)
        result = None
        for mask in (narrowed(op, v, dtype) if v.dtype != dtype else v for v in self.added):
            result = mask if result is None else added(op, result, mask, finite, dtype)
        if result is not None and dtype == ir.DataType.FLOAT16 and self._hides_by_more():
            result = op.Max(result, op.Constant(value=scalar_of(LOW[dtype], dtype)))
        if shown is None:
            return result
        low = self.low if np.isinf(self.low) else max(self.low, LOW[dtype])
        nothing, lowest = (op.Constant(value=scalar_of(n, dtype)) for n in (0.0, low))
        return op.Where(shown, nothing if result is None else result, lowest)


def of(
    masks: Sequence[ir.Value], index_values: IndexValues, parts: Parts | None = None, *, summed: bool = True
) -> Parts:
    """The parts of masks that are all added to the scores, added to other ones where there are some.

    summed: whether they are added to what hides keys by these other ones, too.
    """
    hiding = int(parts is not None and summed)
    parts = parts or Parts()
    _add_masks(masks, parts, index_values, hiding)
    return parts


def condition_parts(value: ir.Value, negated: bool, low: float, index_values: IndexValues) -> Parts:
    """The parts of a mask that shows keys where `value` holds, or hides them there (negated), by the number `low`."""
    parts = Parts(low=low)
    _add_condition(value, negated, low, parts, index_values)
    return parts


def _add_masks(masks: Sequence[ir.Value], parts: Parts, index_values: IndexValues, hiding: int = 0) -> None:
    """hiding: how many others hide keys that these are added to."""
    for mask in masks:
        shown, conditions, others = parts.shown, len(parts.conditions), len(parts.added)
        _add_mask(mask, parts, index_values)
        least = min((least_of(v) or 0.0 for v in parts.added[others:]), default=0.0)
        hiding += parts.shown != shown or len(parts.conditions) > conditions or least <= HIDES
    parts.summed |= hiding > 1


def _add_mask(value: ir.Value, parts: Parts, index_values: IndexValues) -> None:
    choice = index_values.of(value)
    if isinstance(choice, Choice) and _show(choice, parts):
        return
    node = value.producer()
    if node is not None and node.domain == "" and None not in node.inputs:
        operands = [v for v in node.inputs if v is not None]
        if node.op_type == "Add":
            _add_masks(operands, parts, index_values)
            return
        if node.op_type == "Where" and _add_where(operands, parts, index_values):
            return
        if node.op_type == "Max" and _add_limited(operands, parts, index_values):
            return
        if _only_broadcasts(node) or (node.op_type == "Cast" and _is_bool_mask(operands[0], index_values)):
            _add_mask(operands[0], parts, index_values)
            return
    least = least_of(value) or 0.0
    if least <= HIDES:
        parts.hiding.append(HidingMask(ALWAYS, True, least))
    parts.added.append(value)


def _show(choice: Choice, parts: Parts) -> bool:
    """Add what a choice between 0 and a low number shows; False where it is none."""
    shown, truth = choice.shown == 0 and choice.hidden <= HIDES, choice.truth.negated()
    if choice.truth.always and choice.shown == 0:
        return True
    if shown:
        own, low = choice.truth, choice.hidden
    elif choice.hidden == 0 and choice.shown <= HIDES and truth is not None:
        own, low = truth, choice.shown
    else:
        return False
    parts.shown, parts.low = parts.shown.both(own), min(parts.low, low)
    parts.hiding.append(HidingMask(own, False, low))
    return True


def _add_where(operands: Sequence[ir.Value], parts: Parts, index_values: IndexValues) -> bool:
    condition, *values = operands
    for value, other, negated in ((values[1], values[0], False), (values[0], values[1], True)):
        low = uniform(value)
        if low is None or low > HIDES:
            continue
        parts.low = min(parts.low, low)
        _add_condition(condition, negated, low, parts, index_values)
        if uniform(other) != 0 and not (negated and _is_cast_of(condition, other)):
            parts.nested = True
            _add_mask(other, parts, index_values)
        return True
    return False


def _add_limited(operands: Sequence[ir.Value], parts: Parts, index_values: IndexValues) -> bool:
    """Add what a mask shows whose numbers are a low one or more, as they fit a lower precision; False for others."""
    for mask, number in zip(operands, reversed(operands), strict=True) if len(operands) == 2 else ():
        least = uniform(number)
        if least is None or least > HIDES:
            continue
        own = of([mask], index_values)
        if own.added:
            return False
        parts.shown, parts.low = parts.shown.both(own.shown), min(parts.low, max(own.low, least))
        parts.conditions += own.conditions
        parts.hiding += [hiding._replace(low=max(hiding.low, least)) for hiding in own.hiding]
        parts.nested |= own.nested
        parts.summed |= own.summed
        return True
    return False


def _is_cast_of(condition: ir.Value, number: ir.Value) -> bool:
    """Whether a bool is true wherever a number, of any float dtype, is not 0."""
    node, source = condition.producer(), number.producer()
    whole = source.inputs[0] if source is not None and (source.domain, source.op_type) == ("", "Cast") else None
    return node is not None and (node.domain, node.op_type) == ("", "Cast") and node.inputs[0] in (number, whole)


def _add_condition(value: ir.Value, negated: bool, low: float, parts: Parts, index_values: IndexValues) -> None:
    own = Parts()
    _split_condition(value, negated, own, index_values)
    parts.shown, parts.conditions = parts.shown.both(own.shown), [*parts.conditions, *own.conditions]
    parts.hiding.append(HidingMask(own.shown, bool(own.conditions), low))


def _split_condition(value: ir.Value, negated: bool, parts: Parts, index_values: IndexValues) -> None:
    truth = index_values.of(value)
    truth = truth.negated() if isinstance(truth, Truth) and negated else truth
    if isinstance(truth, Truth):
        parts.shown = parts.shown.both(truth)
        return
    node = value.producer()
    operands = [] if node is None or node.domain != "" else [v for v in node.inputs if v is not None]
    if node is not None and operands and _CONCAT_AXES.get(node.op_type) == negated:
        for operand in operands:
            _split_condition(operand, negated, parts, index_values)
    elif node is not None and operands and node.op_type == "Not":
        _split_condition(operands[0], not negated, parts, index_values)
    elif node is not None and operands and _only_broadcasts(node):
        _split_condition(operands[0], negated, parts, index_values)
    elif node is not None and operands and (decided := _decided_by(node, operands)) is not None:
        _split_condition(decided.value, negated != decided.negated, parts, index_values)
    else:
        parts.conditions.append(Condition(value, negated))


def _decided_by(node: ir.Node, operands: Sequence[ir.Value]) -> Condition | None:
    """The condition that a bool follows, which is computed of one of two numbers; None for other bools."""
    compare = _COMPARED.get(node.op_type)
    source, dtypes = operands[0].producer(), [operands[0].dtype]
    while source is not None and (source.domain, source.op_type) == ("", "Cast") and source.inputs[0] is not None:
        dtypes.append(source.inputs[0].dtype)
        source = source.inputs[0].producer()
    if not all(dtype in FLOATS for dtype in dtypes):
        return None
    limit = 0.0 if node.op_type == "Cast" else uniform(operands[1]) if len(operands) > 1 else None
    if compare is None or limit is None or source is None or (source.domain, source.op_type) != ("", "Where"):
        return None
    condition, *values = source.inputs
    numbers = [uniform(v) for v in values]
    if condition is None or any(n is None for n in numbers):
        return None
    pair = np.array(numbers)
    with np.errstate(over="ignore"):
        for dtype in reversed(dtypes):  # each Cast rounds
            pair = pair.astype(dtype.numpy())  # type: ignore[union-attr]
    first, second = (bool(compare(float(n), limit)) for n in pair)
    return None if first == second else Condition(condition, second)


def _is_bool_mask(value: ir.Value, index_values: IndexValues) -> bool:
    """Whether nothing but conditions makes a mask, so that a Cast of it changes no more than its low number."""
    return not of([value], index_values).added


def _only_broadcasts(node: ir.Node) -> bool:
    """Whether a node's result is its first operand, broadcast to more elements or by axes in front."""
    if node.domain != "" or node.op_type not in ("Expand", "Identity", "Unsqueeze"):
        return False
    if node.op_type != "Unsqueeze":
        return True
    axes = None if len(node.inputs) < 2 or node.inputs[1] is None else node.inputs[1].const_value
    source = node.inputs[0]
    if axes is None or source is None or source.shape is None:
        return False
    rank = len(source.shape) + axes.size
    return sorted(int(a) % rank for a in axes.numpy().reshape(-1)) == list(range(axes.size))


def added(op, mask, more, finite: bool, dtype: ir.DataType | None):
    """The sum of two masks. It stays finite where both are: two that hide a key together are less than float16 has."""
    result = op.Add(mask, more)
    if not finite or dtype != ir.DataType.FLOAT16:
        return result
    return op.Max(result, op.Constant(value=scalar_of(MIN[dtype], dtype)))


def least_of(mask: ir.Value | None, depth: int = 0) -> float | None:
    """The least number that a mask is seen to add to a score; None where none is seen."""
    node = None if mask is None else mask.producer()
    if mask is None or depth > _DEEPEST:
        return None
    if mask.const_value is not None and not mask.is_graph_input():
        array = mask.const_value.numpy()
        return float(array.min()) if array.size else None
    if node is None:
        return None
    if node.op_type in _PASSED and node.inputs:
        return least_of(node.inputs[0], depth + 1)
    if node.op_type == "Where":
        numbers = [least_of(v, depth + 1) for v in node.inputs[1:]]
    elif node.op_type == "Add":
        numbers = [least_of(v, depth + 1) for v in node.inputs]
    elif node.op_type == "Mul":
        numbers = [uniform(v) for v in node.inputs]
    else:
        return None
    return min((n for n in numbers if n is not None), default=None)


def narrowed(op, mask, dtype: ir.DataType):
    """A float32 mask cast to the dtype of the scores. In float16, -3.4e38 becomes -65504 instead of -inf."""
    if mask.const_value is not None:
        array = mask.const_value.numpy()
        array = np.maximum(array, MIN[dtype]) if dtype == ir.DataType.FLOAT16 else array
        return op.Constant(value=ir.tensor(array.astype(dtype.numpy()), dtype=dtype))
    if dtype == ir.DataType.FLOAT16:
        mask = op.Max(mask, op.Constant(value=scalar_of(MIN[dtype], ir.DataType.FLOAT)))
    return op.Cast(mask, to=dtype)


def raised(op, mask, dtype: ir.DataType):
    """A mask in the dtype of the scores, whose sum with another keeps apart what one of them hides and what both."""
    mask = mask if mask.dtype == dtype else narrowed(op, mask, dtype)
    return op.Max(mask, op.Constant(value=scalar_of(LOW[dtype], dtype)))


def is_lowest(value: ir.Value) -> bool:
    """Whether a value is the least number of its dtype."""
    number = uniform(value)
    return number is not None and value.dtype in MIN and number <= MIN[value.dtype]


def lost(mask: ir.Value, dtype: ir.DataType | None) -> float:
    """The most by which what a constant float32 mask adds to scores changes where it is rounded, hidden keys aside."""
    tensor = mask.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return 0.0
    array = tensor.numpy()
    shown = array[array > HIDES]
    with np.errstate(over="ignore"):
        return float(np.abs(shown.astype(dtype.numpy()).astype(np.float32) - shown).max(initial=0.0))


def scalar_of(value: float, dtype: ir.DataType) -> ir.TensorProtocol:
    """A tensor of no dims."""
    return ir.tensor(np.array(value).astype(dtype.numpy()), dtype=dtype)

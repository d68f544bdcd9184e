"""Masks of local attention as attention/attention_nodes.py writes them, which the kernel computes from positions.

Unsqueeze(Where(shown, 0, low), [0, 1])    Where(Unsqueeze(shown, [0, 1]), 0 or left, low)
Add(left, Unsqueeze(Where(shown, 0, low), [0, 1]))
shown = apart <= before and apart >= -after
apart = Unsqueeze(Range(T - S, T, 1), [1]) - Range(0, T, 1)     S = Shape(q), T = Shape(k)
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.kinds.flash_attention.views import integers

_HIDING = -1e4  # scores of this or less get weights of 0 in every float dtype
_HIDING_FLOAT32 = -1e30  # and where a bias of float32 may hide keys inside of the window
_LIMITS = {"LessOrEqual": "before", "GreaterOrEqual": "after"}


class Window(NamedTuple):
    """nodes: of the mask. before, after: keys in front of and behind a query's own that it sees; None for all. rest: is
    added to the scores of these keys, [1 or B, 1 or N, 1 or S, T]. summed: keys outside of the window get it too.
    by_far: they are hidden by more than it hides others.
    """

    nodes: tuple[ir.Node, ...]
    before: int | None
    after: int | None
    rest: ir.Value | None = None
    summed: bool = False
    by_far: bool = False


def window_of(
    mask: ir.Value, readers: Collection[ir.Node], q: tuple[ir.Value, int], k: tuple[ir.Value, int]
) -> Window | None:
    """The window that a mask of (1 or B, 1 or N, S, T) shows, where `readers` alone read it; None where it may show
    another.

    q, k: the operands off which it reads the numbers of queries and keys, and the axes along which these lie.
    """
    matched: list[ir.Node] = []
    both = _producer(mask, "Add", matched)
    added = None if both is None else both.inputs[0]
    outer = _producer(mask if both is None else both.inputs[1], "Unsqueeze", matched)
    where = _producer(mask if outer is None else outer.inputs[0], "Where", matched)
    if where is None or not (number(where.inputs[2]) or 0.0) <= _hiding(where.inputs[2]):
        return None
    rest, inner = added, outer
    if outer is None:
        rest = None if number(where.inputs[1]) == 0 else where.inputs[1]
        inner = _producer(where.inputs[0], "Unsqueeze", matched)
    elif number(where.inputs[1]) != 0:
        return None
    if inner is None or not _is(inner.inputs[1], [0, 1]):
        return None
    limits = _limits(where.inputs[0] if outer is not None else inner.inputs[0], q, k, matched)
    if limits is None:
        return None
    inside = {*matched, *readers}
    if any(v.is_graph_output() or any(use.node not in inside for use in v.uses()) for n in matched for v in n.outputs):
        return None
    return Window(
        tuple(dict.fromkeys(matched)),
        limits.get("before"),
        limits.get("after"),
        rest,
        summed=both is not None,
        by_far=rest is not None and number(where.inputs[2]) == -math.inf,
    )


def _hiding(low: ir.Value | None) -> float:
    """The number at or below which a window's mask hides keys. low: what it gives them."""
    return _HIDING_FLOAT32 if low is not None and low.dtype == ir.DataType.FLOAT else _HIDING


def _limits(
    shown: ir.Value | None, q: tuple[ir.Value, int], k: tuple[ir.Value, int], matched: list[ir.Node]
) -> dict[str, int] | None:
    """How far the keys that are shown lie in front of and behind a query's own; None where that is not known."""
    both = _producer(shown, "And", matched)
    limits: dict[str, int] = {}
    apart: set[ir.Value | None] = set()
    for limit in [shown] if both is None else both.inputs:
        producer = None if limit is None else limit.producer()
        node = (
            _producer(limit, producer.op_type, matched)
            if producer is not None and producer.op_type in _LIMITS
            else None
        )
        bound = None if node is None else integers(node.inputs[1])
        if node is None or bound is None or len(bound) != 1 or _LIMITS[node.op_type] in limits:
            return None
        limits[_LIMITS[node.op_type]] = bound[0] if node.op_type == "LessOrEqual" else -bound[0]
        apart.add(node.inputs[0])
    distant = len(apart) == 1 and min(limits.values()) >= 0 and _is_distance(apart.pop(), q, k, matched)
    return limits if distant else None


def _is_distance(
    value: ir.Value | None, q: tuple[ir.Value, int], k: tuple[ir.Value, int], matched: list[ir.Node]
) -> bool:
    """Whether a value is how far each key lies in front of each query, the last of which stands at the last key."""
    apart = _producer(value, "Sub", matched)
    rows = None if apart is None else _producer(apart.inputs[0], "Unsqueeze", matched)
    columns = None if apart is None else _producer(apart.inputs[1], "Range", matched)
    if rows is None or columns is None or not _is(rows.inputs[1], [1]) or not _is(columns.inputs[0], [0]):
        return False
    queries = _producer(rows.inputs[0], "Range", matched)
    if queries is None or not (_is(queries.inputs[2], [1]) and _is(columns.inputs[2], [1])):
        return False
    first = _producer(queries.inputs[0], "Sub", matched)
    if first is None or len({first.inputs[0], queries.inputs[1], columns.inputs[1]}) != 1:
        return False
    return _is_count(first.inputs[0], k, matched) and _is_count(first.inputs[1], q, matched)


def _is_count(value: ir.Value | None, of: tuple[ir.Value, int], matched: list[ir.Node]) -> bool:
    """Whether a value is Squeeze(Shape(of)) of its axis of tokens."""
    squeeze = _producer(value, "Squeeze", matched)
    shape = None if squeeze is None else _producer(squeeze.inputs[0], "Shape", matched)
    operand, axis = of
    if shape is None or shape.inputs[0] is not operand:
        return False
    return (shape.attributes.get_int("start", 0), shape.attributes.get_int("end", 0)) == (axis, axis + 1)


def _producer(value: ir.Value | None, op_type: str, matched: list[ir.Node]) -> ir.Node | None:
    """The ONNX node of this type that makes a value, which `matched` gets."""
    node = None if value is None else value.producer()
    if node is None or (node.domain, node.op_type) != ("", op_type):
        return None
    matched.append(node)
    return node


def _is(value: ir.Value | None, numbers: list[int]) -> bool:
    return integers(value) == numbers


def number(value: ir.Value | None) -> float | None:
    """The element of a constant of one, None for other values."""
    tensor = None if value is None or value.is_graph_input() else value.const_value
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None

"""Queries that are zeros where the mask hides every key, which the kernel weighs alike without them.

Where(ReduceMax(mask, [1, 3]) > low, q, 0)      see graph/rewrite/attention/hidden_rows.py, which writes it
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.graph.additive_masks import LOWEST_SHOWN
from onnxopt.kinds.flash_attention.local_mask import Window, number
from onnxopt.kinds.flash_attention.views import integers

_AXES = [1, 3]


class Queries(NamedTuple):
    """value: the queries before they are zeroed. nodes: that zero them; none where nothing does."""

    value: ir.Value
    nodes: tuple[ir.Node, ...] = ()


def unzeroed(queries: ir.Value, masks: Collection[ir.Value | None], reader: ir.Node) -> Queries:
    """The queries of an attention. masks: what it may read as its mask. reader: the node that attends."""
    where = _producer(queries, "Where")
    sees = None if where is None or number(where.inputs[2]) != 0 else _producer(where.inputs[0], "Greater")
    if where is None or sees is None or where.inputs[1] is None:
        return Queries(queries)
    limit, lowest = number(sees.inputs[1]), _producer(sees.inputs[0], "Unsqueeze")
    if limit != LOWEST_SHOWN:
        return Queries(queries)
    most = _producer(sees.inputs[0] if lowest is None else lowest.inputs[0], "ReduceMax")
    if most is None or most.inputs[0] not in masks or _axes(most) != _AXES:
        return Queries(queries)
    if lowest is not None and integers(lowest.inputs[1]) != [2]:
        return Queries(queries)
    nodes = tuple(node for node in (most, lowest, sees, where) if node is not None)
    inside = {*nodes, reader}
    results = [node.outputs[0] for node in nodes]
    if any(v.is_graph_output() or any(use.node not in inside for use in v.uses()) for v in results):
        return Queries(queries)
    return Queries(where.inputs[1], nodes)


def weights(bias: ir.Value | None, window: Window | None, zeroed: bool) -> str:
    """What a query weighs that the bias shows no key, see FlashAttention. zeroed: whether such queries are zeros.

    Window and bias are parts of one mask, or masks that are added.
    """
    if window is not None and (window.summed or window.by_far):
        return "once" if window.summed else "window"
    return "all" if bias is not None and (zeroed or window is not None) else "scores"


def _axes(node: ir.Node) -> list[int] | None:
    if len(node.inputs) > 1:
        return integers(node.inputs[1])
    axes = node.attributes.get_ints("axes")
    return None if axes is None else list(axes)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None

"""The elementwise nodes behind a node that one kernel computes with it, as long as one value leaves them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Context

_NEAREST = 64  # readers of a region's values that one step looks at


def grow_behind(
    start: list[ir.Node], y: ir.Value, context: Context, fits: Callable[[Sequence[ir.Node]], bool]
) -> list[ir.Node]:
    """The nodes `start`, which compute y, with as many elementwise readers of y's shape as fit, in topological order.

    fits: whether nodes can and should be one kernel.
    """
    best, grown, refused = start, start, set[ir.Node]()
    while (node := _reader(grown, refused, y, context)) is not None:
        trial = sorted([*grown, node], key=context.order.__getitem__)
        if len(trial) > cost.MAX_NODES or context.makes_cycle(trial):
            refused.add(node)
            continue
        if len(context.outputs_of(trial)) > 1:
            grown = trial  # until the other readers of its values have joined
        elif fits(trial):
            best = grown = trial
        else:
            refused.add(node)
    return best


def is_free(node: ir.Node, context: Context) -> bool:
    """Whether a node is elementwise, and no region has it."""
    return eligibility.is_elementwise(node) and not context.is_taken(node) and context.why_not(node) is None


def _reader(nodes: list[ir.Node], refused: set[ir.Node], y: ir.Value, context: Context) -> ir.Node | None:
    """The first node that reads a value of the nodes and may join them."""
    inside = set(nodes)
    readers = {u for n in nodes for v in n.outputs for u in context.readers(v)}
    free = [n for n in readers if n in context.order and n not in inside and n not in refused]
    for node in heapq.nsmallest(_NEAREST, free, key=context.order.__getitem__):
        if is_free(node, context) and context.shapes.same(node.outputs[0], y):
            return node
    return None

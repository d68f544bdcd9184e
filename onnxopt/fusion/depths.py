"""Depths: the number of kernels on the longest path from a graph's inputs to each kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import onnx_ir as ir

Unit = TypeVar("Unit", bound=Hashable)


def depths(
    nodes: Iterable[ir.Node], unit_of: Callable[[ir.Node], Unit], members: Callable[[Unit], Sequence[ir.Node]]
) -> dict[Unit, int]:
    """Unit -> its depth. A unit is a group of nodes that one kernel runs; the graph of units must have no cycle.

    unit_of: the unit of a node. members: the nodes of a unit.
    """
    inside = set(nodes)
    depth: dict[Unit, int] = {}
    for start in inside:
        pending = [unit_of(start)]
        while pending:
            unit = pending[-1]
            if unit in depth:
                pending.pop()
                continue
            sources = {
                unit_of(producer)
                for node in members(unit)
                for value in node.inputs
                if value is not None and (producer := value.producer()) is not None and producer in inside
            } - {unit}
            missing = [s for s in sources if s not in depth]
            if missing:
                pending += missing
                continue
            depth[unit] = 1 + max((depth[s] for s in sources), default=-1)
            pending.pop()
    return depth

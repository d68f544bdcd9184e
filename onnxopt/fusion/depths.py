"""Depths: how many kernels lie on the longest way from a graph's inputs to each group of nodes that is one kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import onnx_ir as ir

Unit = TypeVar("Unit", bound=Hashable)


def depths(
    nodes: Iterable[ir.Node], unit_of: Callable[[ir.Node], Unit], members: Callable[[Unit], Sequence[ir.Node]]
) -> dict[Unit, int]:
    """Unit -> its depth. unit_of: the kernel that runs a node; the graph of units has no cycle."""
    inside = set(nodes)
    found: dict[Unit, int] = {}
    for start in inside:
        pending = [unit_of(start)]
        while pending:
            unit = pending[-1]
            sources = {
                unit_of(producer)
                for node in members(unit)
                for value in node.inputs
                if value is not None and (producer := value.producer()) is not None and producer in inside
            } - {unit}
            missing = [s for s in sources if s not in found]
            if missing:
                pending += missing
                continue
            found[unit] = 1 + max((found[s] for s in sources), default=-1)
            pending.pop()
    return found

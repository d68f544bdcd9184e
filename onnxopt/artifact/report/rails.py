"""Edges of a drawn graph as SVG text: one lane for each result that a later row reads, as version histories are drawn.

Each row has two pieces: its head, of fixed height, with the node and the edges into and out of it, and its rest, which
is stretched to the height of what stands beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

_STEP = 12  # between two lanes
_WIDEST = 120  # of all lanes: more of them come nearer to each other
_HEAD, _MIDDLE = 32, 16


@dataclasses.dataclass(frozen=True)
class Rail:
    """The two pieces of one row, as SVG elements."""

    head: Markup
    rest: Markup


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A row's lanes. lane: of its node. above: lanes that come from above, and whether the row reads each; below: lanes
    that go on.
    """

    lane: int
    above: tuple[tuple[int, bool], ...]
    below: tuple[int, ...]


def rails(reads: Sequence[Sequence[int]], shapes: Sequence[str]) -> tuple[int, tuple[Rail, ...]]:
    """The width of all rails, and the rail of each row.

    reads: which earlier rows each row reads. shapes: how each node is drawn, "fused", "input" or "op".
    """
    cells = _cells(reads)
    lanes = 1 + max((max(c.lane, *(lane for lane, _ in c.above), *c.below, 0) for c in cells), default=0)
    step = min(_STEP, _WIDEST / lanes)
    width = round(step * lanes) + 4
    return width, tuple(_rail(cell, shape, step, width) for cell, shape in zip(cells, shapes, strict=True))


def _cells(reads: Sequence[Sequence[int]]) -> list[_Cell]:
    last = [-1] * len(reads)  # the last row that reads each row
    for row, sources in enumerate(reads):
        for source in sources:
            last[source] = row
    active: list[int | None] = []  # which row's result each lane holds
    cells = []
    for row, sources in enumerate(reads):
        above = tuple((k, source in sources) for k, source in enumerate(active) if source is not None)
        ending = [k for k, source in enumerate(active) if source is not None and last[source] == row]
        free = [k for k, source in enumerate(active) if source is None]
        lane = min(ending or free, default=len(active))
        for k in ending:
            active[k] = None
        if lane == len(active):
            active.append(None)
        active[lane] = row if last[row] > row else None
        while active and active[-1] is None:
            active.pop()
        cells.append(_Cell(lane, above, tuple(k for k, source in enumerate(active) if source is not None)))
    return cells


def _rail(cell: _Cell, shape: str, step: float, width: int) -> Rail:
    def x(lane: int) -> str:
        return f"{step * (lane + 0.5) + 2:.4g}"

    node, below = x(cell.lane), set(cell.below)
    path = ""
    for lane, is_read in cell.above:
        goes_on = lane in below and lane != cell.lane
        if goes_on:
            path += f"M{x(lane)} 0V{_HEAD}"
        if is_read and lane == cell.lane:
            path += f"M{node} 0V{_MIDDLE}"
        elif is_read:
            path += f"M{x(lane)} 0C{x(lane)} {_MIDDLE // 2} {node} {_MIDDLE // 2} {node} {_MIDDLE}"
    if cell.lane in below:
        path += f"M{node} {_MIDDLE}V{_HEAD}"
    rest = "".join(f"M{x(lane)} 0V1" for lane in cell.below)
    head = f'<svg class="rail" width="{width}" height="{_HEAD}" aria-hidden="true">'
    stretched = f'<svg class="rest" viewBox="0 0 {width} 1" preserveAspectRatio="none" aria-hidden="true">'
    return Rail(
        Markup(f"{head}{_lines(path)}{_mark(shape, node)}</svg>"),
        Markup(f"{stretched}{_lines(rest)}</svg>" if rest else ""),
    )


def _lines(path: str) -> str:
    return f'<path d="{path}"/>' if path else ""


def _mark(shape: str, x: str) -> str:
    if shape == "fused":
        return f'<rect x="{float(x) - 4.5:.4g}" y="{_MIDDLE - 4.5}" width="9" height="9"/>'
    return f'<circle class="{shape}" cx="{x}" cy="{_MIDDLE}" r="3.5"/>'

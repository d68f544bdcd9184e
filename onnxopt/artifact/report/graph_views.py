"""The drawings of the graph before and after, as records for the template: what each row says, and its edges."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from onnxopt.artifact.manifest import Kernel
from onnxopt.artifact.report.drawing import MAX_NODES, Row
from onnxopt.artifact.report.facts import Facts, Graph
from onnxopt.artifact.report.rails import Rail, rails
from onnxopt.graph import signature

_DIMS = re.compile(r"\[(.*)\]$")
_SHOWN_OPS = 4  # of a fused call that is not opened


@dataclasses.dataclass(frozen=True)
class RowView:
    """One row of a drawing. kind: op, contrib, input or fused. ops: of a fused call, in order. body: their drawing."""

    kind: str
    title: str
    tensor: str
    more: int
    inside: int
    rail: Rail
    kernel: str = ""
    ops: int = 0
    body: DrawnGraph | None = None


@dataclasses.dataclass(frozen=True)
class DrawnGraph:
    """width: of the rails, in pixels. nodes: rows that are no inputs."""

    width: int
    rows: tuple[RowView, ...]
    nodes: int


@dataclasses.dataclass(frozen=True)
class Drawings:
    """after, before: None where there is none; `why_not` says why, "" where the report was made without drawings."""

    after: DrawnGraph | None
    before: DrawnGraph | None
    why_not: str


def drawings(facts: Facts, kernels: Sequence[Kernel], sizes: Mapping[str, int]) -> Drawings:
    """sizes: of symbolic dims, to show instead of their names."""
    titles = {k.name: _ops_text(k.operators) for k in kernels}
    bodies = {name: _drawn(rows, titles, {}, sizes) for name, rows in facts.bodies.items() if rows}

    def of(graph: Graph | None) -> DrawnGraph | None:
        return _drawn(graph.rows, titles, bodies, sizes) if graph is not None and graph.rows else None

    count = max((graph.nodes for graph in (facts.before, facts.after) if graph is not None), default=0)
    why_not = f"graphs of more than {MAX_NODES:,} nodes are not drawn" if count > MAX_NODES else ""
    return Drawings(of(facts.after), of(facts.before), why_not)


def _ops_text(ops: Sequence[str]) -> str:
    more = len(ops) - _SHOWN_OPS
    return " → ".join(ops[:_SHOWN_OPS]) + (f" and {more} more" if more > 0 else "")


def _drawn(
    rows: Sequence[Row], titles: Mapping[str, str], bodies: Mapping[str, DrawnGraph], sizes: Mapping[str, int]
) -> DrawnGraph:
    kinds = [_kind(row) for row in rows]
    width, edges = rails([row.reads for row in rows], kinds)
    views = []
    for row, kind, rail in zip(rows, kinds, edges, strict=True):
        body = bodies.get(row.op) if row.is_fused else None
        views.append(
            RowView(
                kind=kind,
                title=titles.get(row.op, row.op),
                tensor=_with_sizes(row.tensor, sizes),
                more=row.more,
                inside=row.inside,
                rail=rail,
                kernel=row.op if row.op in titles else "",
                ops=body.nodes if body else 0,
                body=body,
            )
        )
    return DrawnGraph(width, tuple(views), sum(kind != "input" for kind in kinds))


def _kind(row: Row) -> str:
    if row.is_fused or row.is_input:
        return "fused" if row.is_fused else "input"
    return "contrib" if "::" in row.op else "op"


def _with_sizes(tensor: str, sizes: Mapping[str, int]) -> str:
    """ "float16[batch,768]" as "float16[8, 768]"; dims of unknown size keep their names."""
    return _DIMS.sub(lambda match: f"[{', '.join(_size(d.strip(), sizes) for d in match[1].split(',') if d)}]", tensor)


def _size(dim: str, sizes: Mapping[str, int]) -> str:
    if dim == "?" or dim.isdigit():
        return dim
    try:
        return str(signature.evaluate(dim, sizes))
    except (KeyError, ZeroDivisionError):  # of sizes that the model does not take
        return dim

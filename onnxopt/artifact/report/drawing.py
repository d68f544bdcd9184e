"""A graph as rows that the report can draw: each node below all that it reads.

Constants and weights are no rows. A row stands as near as possible to the first row that reads it, so that few edges
run side by side.
"""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.kernel import Site
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.signature import dtype_name

MAX_NODES = 3000  # of a graph that is drawn; more rows than that nobody reads, and a phone takes seconds for them
_FEED = "input"


@dataclasses.dataclass(frozen=True)
class Row:
    """A node, or an input of the graph. op: "domain::Op" outside ONNX's own, a fused function's name, or "input NAME".

    reads: indexes of earlier rows. tensor: the first output as "float16[batch,768]", "" where unknown. more: outputs
    beyond the first. inside: nodes of its subgraphs. is_fused, is_input: what it is where it is no operator.
    """

    op: str
    reads: tuple[int, ...]
    tensor: str = ""
    more: int = 0
    inside: int = 0
    is_fused: bool = False
    is_input: bool = False


def drawn_model(model: ir.Model, sites: Mapping[str, Site] | None = None) -> tuple[Row, ...]:
    """The main graph; () where it has more than MAX_NODES nodes. sites: of fused calls, by the call's name."""
    graph = model.graph
    if graph.num_nodes() > MAX_NODES:
        return ()
    return _drawn("the model", lambda: _rows(list(graph), graph.inputs, graph.outputs, sites or {}))


def drawn_functions(model: ir.Model) -> dict[str, tuple[Row, ...]]:
    """The bodies of the model's fused functions, by name: the original nodes that each call stands for."""
    return {
        function.name: _drawn(
            function.name, functools.partial(_rows, list(function), function.inputs, function.outputs, {})
        )
        for function in model.functions.values()
        if holds_fused(function.domain) and len(list(function)) <= MAX_NODES
    }


def _drawn(of: str, draw: Callable[[], tuple[Row, ...]]) -> tuple[Row, ...]:
    """The rows that `draw` returns; () and a warning where it raises an error: no model is lost for its picture."""
    try:
        return draw()
    except Exception as error:  # noqa: BLE001 - a picture is no part of the result
        warnings.warn(
            f"the report has no drawing of {of}: {type(error).__name__}: {str(error)[:200]}. Please report it",
            RuntimeWarning,
            stacklevel=3,
        )
        return ()


def _rows(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], sites: Mapping[str, Site]
) -> tuple[Row, ...]:
    """nodes: in any order; ONNX Runtime sorts them too. graphlib.CycleError where they read each other in a circle."""
    drawn = [node for node in nodes if node.op_type != "Constant"]
    items = {*drawn, *(value for value in inputs if not _constant(value))}
    sources: dict[ir.Node | ir.Value, tuple[ir.Node | ir.Value, ...]] = {v: () for v in inputs if v in items}
    for node in drawn:
        read = (_source(value) for value in _values_read(node))
        sources[node] = tuple(dict.fromkeys(source for source in read if source in items))
    tensors = _tensors(drawn, sites)
    places: dict[ir.Node | ir.Value, int] = {}
    rows: list[Row] = []
    for item in _order(sources, [_source(value) for value in outputs]):
        reads = tuple(sorted(places[source] for source in sources[item]))
        places[item] = len(rows)
        rows.append(_row(item, reads, tensors))
    return tuple(rows)


def _values_read(node: ir.Node) -> Iterable[ir.Value]:
    """The inputs of a node, and what its subgraphs read from outside."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph().all_nodes():
                yield from (value for value in inner.inputs if value is not None)


def _source(value: ir.Value) -> ir.Node | ir.Value:
    """What a value comes from: the node that makes it, else the value itself."""
    return value.producer() or value


def _constant(value: ir.Value) -> bool:
    return value.is_initializer() or value.const_value is not None


def _order(
    sources: Mapping[ir.Node | ir.Value, tuple[ir.Node | ir.Value, ...]], ends: Sequence[ir.Node | ir.Value]
) -> Iterable[ir.Node | ir.Value]:
    """Everything below what it reads. Of what a node reads, the longest branch comes first.

    ends: what the graph's outputs come from.
    """
    depth: dict[ir.Node | ir.Value, int] = {}
    for item in graphlib.TopologicalSorter(sources).static_order():
        depth[item] = 1 + max((depth[source] for source in sources[item]), default=0)
    done: set[ir.Node | ir.Value] = set()
    for end in (*ends, *reversed(list(sources))):  # what no output needs comes last
        stack = [(end, False)] if end in sources else []
        while stack:
            item, is_ready = stack.pop()
            if item in done:
                continue
            if is_ready:
                done.add(item)
                yield item
                continue
            stack.append((item, True))
            stack += [(source, False) for source in sorted(sources[item], key=lambda s: depth[s]) if source not in done]


def _tensors(nodes: Iterable[ir.Node], sites: Mapping[str, Site]) -> dict[ir.Value, str]:
    """What fused calls read and write, as their sites say: values between new nodes have no shape of their own."""
    tensors: dict[ir.Value, str] = {}
    for node in nodes:
        if holds_fused(node.domain) and (site := sites.get(node.name or "")):
            for value, text in zip((*node.inputs, *node.outputs), site.shapes, strict=False):
                if value is not None:
                    tensors[value] = text
    return tensors


def _row(item: ir.Node | ir.Value, reads: tuple[int, ...], tensors: Mapping[ir.Value, str]) -> Row:
    if isinstance(item, ir.Value):
        return Row(f"{_FEED} {item.name}", reads, _tensor(item, tensors), is_input=True)
    own = item.domain in ("", "ai.onnx") or holds_fused(item.domain)
    graphs = [a.as_graph() for a in item.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return Row(
        op=item.op_type if own else f"{item.domain}::{item.op_type}",
        reads=reads,
        tensor=_tensor(item.outputs[0], tensors) if item.outputs else "",
        more=max(len(item.outputs) - 1, 0),
        inside=sum(1 for graph in graphs for _ in graph.all_nodes()),
        is_fused=holds_fused(item.domain),
    )


def _tensor(value: ir.Value, tensors: Mapping[ir.Value, str]) -> str:
    if value in tensors:
        return tensors[value]
    if value.dtype is None or value.shape is None:
        return ""
    dims = ("?" if d is None else str(d) for d in (d if isinstance(d, int) else d.value for d in value.shape.dims))
    return f"{dtype_name(value.dtype)}[{','.join(dims)}]"

"""Gives every node and every value of a model a name that nothing else in the model has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

# Names that ONNX Runtime gives to the initializers that its optimizer adds, compared with names of nodes only. A model
# that its optimizer wrote has them; when the same rule adds them again, no session can be created.
_USED_BY_ORT = re.compile(
    r"(gemm_input_shape|gemm_output_shape|SqueezeAxesInitializer|ConstAsInitializer|squeeze_axes|fused_Split)(_token_\d+)?"
)


class UniqueNamesPass(ir.passes.InPlacePass):
    """Names unnamed nodes and values, and renames all but the first of those that share a name.

    The interface of the main graph keeps its names, then main graph values in order, then those of subgraphs. Names
    are unique over the whole model, so a node or a value can be referred to by name alone, and nothing in a subgraph
    shadows a value of the graphs around it. The result depends on the model only. No value inside the graph keeps a
    name that ONNX Runtime's optimizer gives to an initializer of its own.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, _name_values(model.graph) + _name_nodes(model.graph) > 0)


def _name_values(graph: ir.Graph) -> int:
    names = _Names({value.name for value in _values(graph)}, barred=_USED_BY_ORT)
    fixed = set()
    for value in (*graph.inputs, *graph.outputs):
        if value.name:
            names.take(value.name)
            fixed.add(value)
    renamed = 0
    for value in _values(graph):
        if value in fixed:
            continue
        fixed.add(value)
        name = names.unique(value.name or "value", made_up=not value.name)
        if name != value.name:
            value.name = name
            renamed += 1
    return renamed


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Values of a graph, then of the graphs inside it, without unnamed outputs that have no reader."""
    inner = []
    yield from tuple(graph.initializers.values())
    for node in graph:
        for value in node.outputs:
            if value.name or value.uses() or value.is_graph_output():
                yield value
        inner += subgraphs(node)
    for subgraph in inner:
        yield from subgraph.inputs
        yield from _values(subgraph)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node's attributes."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def _name_nodes(graph: ir.Graph) -> int:
    nodes = list(graph.all_nodes())
    names = _Names({node.name for node in nodes})
    renamed = 0
    for node in nodes:
        name = names.unique(node.name or node.op_type, made_up=not node.name)
        if name != node.name:
            node.name = name
            renamed += 1
    return renamed


class _Names:
    """Names used so far.

    present: names in the model, which no new name may equal, since their owners may keep them. barred: names that none
    may have.
    """

    def __init__(self, present: set[str | None], barred: re.Pattern[str] | None = None) -> None:
        self._present, self._barred = present, barred
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, name: str) -> None:
        self._used.add(name)

    def unique(self, name: str, *, made_up: bool) -> str:
        """`name`, or `name` with the first free number, as used from now on. made_up: no owner has the name yet."""
        candidate = name
        while candidate in self._used or (made_up and candidate in self._present) or self._is_barred(candidate):
            made_up = True
            self._next[name] = self._next.get(name, 0) + 1
            candidate = f"{name}_{self._next[name]}"
        self._used.add(candidate)
        return candidate

    def _is_barred(self, name: str) -> bool:
        return self._barred is not None and self._barred.fullmatch(name) is not None

"""The network whose least cut says which nodes compute in channels last.

A vertex is a node that could. Where a value's producer and a reader end on different sides, a Transpose moves the
value's bytes; several readers on one side share it. A convolution in NCHW loses more than the Transposes around it: its
kernels move both its operand and its result, and its bias is a pass of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxopt.costs.layout import numbers
from onnxopt.graph.layout import min_cut
from onnxopt.graph.layout.forms import CONVOLUTIONS, Form, operand
from onnxopt.graph.layout.orders import RANKS, turns_first, turns_last
from onnxopt.graph.shapes.dims import Dim, symbols_of
from onnxopt.graph.shapes.infer import Knowledge

_COSTS = numbers()


class Costs:
    """What a Transpose of a value costs, in bytes. A number of costs/data/layout.json stands for every symbol."""

    def __init__(self, inferred: Knowledge) -> None:
        self._inferred = inferred
        self._sizes: dict[Dim, int] = {}

    def of(self, value: ir.Value) -> int:
        dims = self._inferred.dims(value)
        if dims is None:
            return _COSTS.unknown_bytes
        if len(dims) in RANKS and (dims[1] == 1 or all(dim == 1 for dim in dims[2:])):
            return 1  # the same memory in either layout
        itemsize = math.ceil(value.dtype.itemsize) if value.dtype is not None else 4
        return max(1, itemsize * math.prod(map(self._size, dims)))

    def _size(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._sizes:
            self._sizes[dim] = max(1, int(dim.subs(dict.fromkeys(symbols_of(dim), _COSTS.symbolic))))
        return self._sizes[dim]


def choose(forms: Mapping[ir.Node, Form], inferred: Knowledge) -> set[ir.Node]:
    """The nodes that compute in channels last. forms: of the nodes that could."""
    costs, network = Costs(inferred), min_cut.Network()
    vertices = {node: network.vertex() for node in forms}
    values: dict[ir.Value, None] = {}
    for node, form in forms.items():
        values.update(dict.fromkeys(form.maps(node)))
        for k in form.spread:
            network.edge(vertices[node], min_cut.SINK, costs.of(operand(node, k)))
        if node.op_type in CONVOLUTIONS:
            moved = costs.of(operand(node, 0)) + costs.of(node.outputs[0])
            network.edge(min_cut.SOURCE, vertices[node], _COSTS.lost_by_nchw * moved)
        if form.begins is not None:
            network.edge(vertices[node], vertices[form.begins], min_cut.INFINITE, min_cut.INFINITE)
    for value in values:
        _connect(network, value, forms, vertices, costs.of(value))
    source_side = network.source_side()
    return {node for node, vertex in vertices.items() if vertex in source_side}


def _connect(
    network: min_cut.Network, value: ir.Value, forms: Mapping[ir.Node, Form], vertices: Mapping[ir.Node, int], cost: int
) -> None:
    """Edges that cut off `cost` where a reader lies on another side than the producer of a value."""
    producer = value.producer()
    vertex = min_cut.SINK
    if producer is not None and turns_first(producer):
        vertex = min_cut.SOURCE  # what it transposes lies in channels last
    elif producer in forms and producer is not None:
        vertex = vertices[producer]
    readers = _readers(value, forms, vertices)
    if len(readers) == 1:
        network.edge(vertex, next(iter(readers)), cost, cost)
        return
    first, last = network.vertex(), network.vertex()
    network.edge(vertex, first, cost)
    network.edge(last, vertex, cost)
    for reader in readers:
        network.edge(first, reader, min_cut.INFINITE)
        network.edge(reader, last, min_cut.INFINITE)


def _readers(value: ir.Value, forms: Mapping[ir.Node, Form], vertices: Mapping[ir.Node, int]) -> Collection[int]:
    readers = {min_cut.SINK} if value.is_graph_output() else set()
    for use in value.uses():
        if turns_last(use.node):
            readers.add(min_cut.SOURCE)
        elif use.node in forms and use.idx in forms[use.node].inputs:
            readers.add(vertices[use.node])
        else:
            readers.add(min_cut.SINK)
    return readers


def reachable(forms: Mapping[ir.Node, Form]) -> dict[ir.Node, Form]:
    """The nodes that values in channels last connect with a convolution; no other node can gain."""
    reached: dict[ir.Node, Form] = {}
    ends = {form.begins: node for node, form in forms.items() if form.begins is not None}
    stack = [node for node in forms if node.op_type in CONVOLUTIONS]
    while stack:
        node = stack.pop()
        if node in reached or node not in forms:
            continue
        reached[node] = forms[node]
        stack += [other for other in (ends.get(node), forms[node].begins) if other is not None]
        for value in forms[node].maps(node):
            producer = value.producer()
            stack += [*([producer] if producer is not None else []), *value.consumers()]
    return {node: forms[node] for node in forms if node in reached}

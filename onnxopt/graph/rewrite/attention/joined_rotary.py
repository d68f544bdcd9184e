"""Rotary embedding of the heads of several streams, after the Concat that joins them along their tokens.

    Concat(rotary(a, cos1, sin1), rotary(b, cos2, sin2), axis=2)
        -> rotary(Concat(a, b, axis=2), Concat(cos1, cos2), Concat(sin1, sin2))

The tables are constants. Each stream's embedding is the same elementwise work, with Slices and Concats of the elements
of a head; the operand that all of it reads is what the new Concat joins.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import constant, is_constant
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.attention.head_work import RANK

_ELEMENTWISE = frozenset({"Add", "Cast", "Mul", "Neg", "Sub"})
_OF_ELEMENTS = frozenset({"Slice", "Concat"})  # along a head
_MAX_NODES = 32  # of one stream
_TOKENS, _LAST = 2, (-1, RANK - 1)
Streams = tuple[ir.Value, ...]  # one value of each


def join(node: ir.Node, graph: ir.Graph, tables: dict[Streams, ir.Value]) -> ir.Node | None:
    """Apply the rule to a Concat of tokens of four dims, in place. Returns the new Concat, or None.

    tables: the constants that were joined so far, by those of the streams.
    """
    result = node.outputs[0]
    operands = tuple(v for v in node.inputs if v is not None)
    if len(operands) != len(node.inputs) or not any(v.producer() for v in operands):
        return None
    work = _Work(operands, tables)
    if not work.is_of(operands) or len(work.sources) != 1 or not work.is_private(node):
        return None
    (source,) = work.sources
    new = NewNodes(graph, node)
    joined = new.add("Concat", source, source[0].dtype, [ir.AttrInt64("axis", _TOKENS)])
    joined.shape = _shape(source)
    rotated = work.repeated(operands, new, {source: joined})
    rotated.shape = result.shape
    result.replace_all_uses_with(rotated, replace_graph_outputs=True)
    graph.remove((node, *work.nodes()), safe=True)
    return joined.producer()


class _Work:
    """The work that all streams have in common. sources: what it begins at."""

    def __init__(self, streams: Streams, tables: dict[Streams, ir.Value]) -> None:
        self._lengths = [None if v.shape is None else v.shape[_TOKENS] for v in streams]
        self._nodes: dict[Streams, tuple[ir.Node, ...]] = {}
        self._tables = tables
        self.sources: set[Streams] = set()

    def is_of(self, values: Streams) -> bool:
        """Whether the values are the same work on sources of all streams. Work that differs begins a source."""
        if values in self._nodes or values in self.sources:
            return True
        if any(map(is_constant, values)):
            return self._is_same(values) or self._is_table(values)
        nodes = tuple(node for v in values if (node := v.producer()) is not None)
        if len(nodes) == len(values) and len(self._nodes) < _MAX_NODES and _alike(nodes):
            before = dict(self._nodes), set(self.sources)
            count = 1 if nodes[0].op_type == "Slice" else len(nodes[0].inputs)
            self._nodes[values] = nodes
            if all(self.is_of(operands) for operands in _operands(nodes, count)):
                return True
            self._nodes, self.sources = before
        if any(v.shape is None or len(v.shape) != RANK for v in values):
            return False
        self.sources.add(values)
        return True

    def nodes(self) -> list[ir.Node]:
        """The nodes of all streams."""
        return list(dict.fromkeys(node for nodes in self._nodes.values() for node in nodes))

    def is_private(self, reader: ir.Node) -> bool:
        """Whether nothing but the Concat reads what the work computes."""
        inside = {reader, *self.nodes()}
        computed = [v for values in self._nodes for v in values]
        return bool(computed) and not any(v.is_graph_output() or set(v.consumers()) - inside for v in computed)

    def repeated(self, values: Streams, new: NewNodes, made: dict[Streams, ir.Value]) -> ir.Value:
        """The work on the joined sources. made: values of all streams together."""
        if values not in made:
            made[values] = self._constant(values, new) if is_constant(values[0]) else self._computed(values, new, made)
        return made[values]

    def _computed(self, values: Streams, new: NewNodes, made: dict[Streams, ir.Value]) -> ir.Value:
        nodes = self._nodes[values]
        count = 1 if nodes[0].op_type == "Slice" else len(nodes[0].inputs)
        operands = [self.repeated(of, new, made) for of in _operands(nodes, count)]
        inputs = [*operands, *nodes[0].inputs[count:]]
        result = new.add(nodes[0].op_type, inputs, values[0].dtype, list(nodes[0].attributes.values()))
        result.shape = _shape(values)
        return result

    def _constant(self, values: Streams, new: NewNodes) -> ir.Value:
        if self._is_same(values):
            return values[0]
        if values not in self._tables:
            arrays = [v.const_value.numpy() for v in values if v.const_value is not None]
            self._tables[values] = new.held(
                ir.Tensor(np.concatenate(arrays, axis=-2), dtype=values[0].dtype, name=f"{values[0].name}/joined")
            )
        return self._tables[values]

    def _is_same(self, values: Streams) -> bool:
        """Whether constants are one number."""
        arrays = [constant(v) for v in values]
        return all(a is not None and a.size == 1 and a.tobytes() == arrays[0].tobytes() for a in arrays)  # type: ignore[union-attr]

    def _is_table(self, values: Streams) -> bool:
        """Whether constants have a row for each token of their stream, and are alike otherwise."""
        arrays = [constant(v) for v in values]
        if any(a is None or a.ndim < 2 or a.shape[-2] != n for a, n in zip(arrays, self._lengths, strict=True)):
            return False
        forms = {(a.dtype, a.shape[:-2], a.shape[-1:]) for a in arrays if a is not None}
        return len(forms) == 1


def _alike(nodes: tuple[ir.Node, ...]) -> bool:
    """Whether nodes are the same elementwise operator, or the same Slice or Concat along a head."""
    first = nodes[0]
    if first.domain or first.op_type not in _ELEMENTWISE | _OF_ELEMENTS:
        return False
    for node in nodes:
        same = (node.domain, node.op_type, len(node.inputs)) == (first.domain, first.op_type, len(first.inputs))
        if not same or dict(node.attributes) != dict(first.attributes) or None in node.inputs:
            return False
    if first.op_type == "Concat":
        return first.attributes.get_int("axis", 0) in _LAST
    parameters = [[constant(v) for v in node.inputs[1:]] for node in nodes]
    if first.op_type == "Slice":
        if any(p is None for row in parameters for p in row) or len(parameters[0]) < 3:
            return False
        lists = [[p.tolist() for p in row if p is not None] for row in parameters]
        return all(row == lists[0] for row in lists) and lists[0][2] in ([-1], [RANK - 1])
    return True


def _operands(nodes: tuple[ir.Node, ...], count: int) -> list[Streams]:
    return [tuple(v for n in nodes if (v := n.inputs[k]) is not None) for k in range(count)]


def _shape(values: Streams) -> ir.Shape | None:
    """The shape of values of four dims, joined along tokens."""
    shapes = [v.shape for v in values if v.shape is not None and len(v.shape) == RANK]
    lengths = [shape[_TOKENS] for shape in shapes]
    if len(shapes) != len(values):
        return None
    total = sum(n for n in lengths if isinstance(n, int)) if all(isinstance(n, int) for n in lengths) else None
    return ir.Shape([*shapes[0][:_TOKENS], total, shapes[0][-1]])

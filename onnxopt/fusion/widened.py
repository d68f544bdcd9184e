"""Function bodies that compute in float32 between Casts, as kernels do, where only what is stored has 16 bits.

Without the library ONNX Runtime runs a function's body. Nodes of 16 bits would round, and overflow, between any two of
them; the body of a model of lower precision therefore casts where it reads and where it stores.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.fusion import index_ops
from onnxopt.program import operators, row_operators

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FLOAT = ir.DataType.FLOAT
_WIDE = (_FLOAT, ir.DataType.DOUBLE)
_FEWEST = 2  # nodes that compute: a single one rounds its result as the kernel does


def widen(graph: ir.Graph, dtypes: Mapping[ir.Value, ir.DataType | None]) -> None:
    """Widen a body in place: elementwise nodes, norms and reductions, and what moves elements between them.

    dtypes: of all values. Products keep 16-bit operands, and so do nodes whose result jumps, as kernels round the
    operands of these. Names, inputs and outputs stay.
    """
    if sum(map(_computes, graph)) < _FEWEST:
        return
    body = _Body(graph, dtypes)
    for node in list(graph):
        if _computes(node) or (index_ops.is_index(node) and body.is_wide(node.inputs[0])):
            body.compute_wide(node)
        elif not (node.op_type == "Cast" and node.attributes.get_int("to", 0) in _WIDE):  # these lose nothing
            body.read_narrow(node)
    body.store()


def _computes(node: ir.Node) -> bool:
    key = (node.domain, node.op_type)
    if node.op_type in ("Cast", "Identity"):
        return False
    row = operators.OPERATORS.get(key)
    return (row is not None and not row.exact) or (
        key in row_operators.ROW_OPERATORS and not node.op_type.startswith("Arg")
    )


class _Body:
    """One body. A value whose node computes in float32 keeps its object, now of float32, and its name moves on."""

    def __init__(self, graph: ir.Graph, dtypes: Mapping[ir.Value, ir.DataType | None]) -> None:
        self._graph, self._dtypes = graph, dtypes
        self._wide: dict[ir.Value, ir.DataType] = {}  # now float32 -> the dtype that it is stored in
        self._up: dict[ir.Value, ir.Value] = {}
        self._down: dict[ir.Value, ir.Value] = {}

    def is_wide(self, value: ir.Value | None) -> bool:
        return value in self._wide

    def compute_wide(self, node: ir.Node) -> None:
        for k, value in enumerate(node.inputs):
            if value is not None and self._dtype(value) in _NARROW and value not in self._wide:
                node.replace_input_with(k, self._widened(value))
        self._note_results(node)

    def read_narrow(self, node: ir.Node) -> None:
        for k, value in enumerate(node.inputs):
            if value is not None and value in self._wide:
                node.replace_input_with(k, self._stored(value))

    def store(self) -> None:
        """Let the body's outputs have their dtypes and names again."""
        for k, value in enumerate(self._graph.outputs):
            if value in self._wide:
                stored = self._stored(value)
                value.name, stored.name = f"{value.name}_wide", value.name
                self._graph.outputs[k] = stored

    def _note_results(self, node: ir.Node) -> None:
        for value in node.outputs:
            dtype = self._dtype(value)
            if dtype is not None and dtype in _NARROW:
                self._wide[value] = dtype

    def _dtype(self, value: ir.Value) -> ir.DataType | None:
        return self._dtypes.get(value, value.dtype)

    def _widened(self, value: ir.Value) -> ir.Value:
        """A value of 16 bits in float32."""
        if value not in self._up:
            producer = value.producer()
            if producer is not None and producer.op_type == "Constant":
                array = producer.attributes["value"].as_tensor().numpy().astype(np.float32)
                name = f"{value.name}_wide"
                node = ir.node("Constant", [], {"value": ir.tensor(array, name=name)})
            else:
                node = ir.node("Cast", [value], {"to": _FLOAT.value})
            self._up[value] = self._insert(node, producer, f"{value.name}_wide")
        return self._up[value]

    def _stored(self, value: ir.Value) -> ir.Value:
        """A value that is now float32 in the dtype that it is stored in."""
        if value not in self._down:
            node = ir.node("Cast", [value], {"to": self._wide[value].value})
            self._down[value] = self._insert(node, value.producer(), f"{value.name}_stored")
        return self._down[value]

    def _insert(self, node: ir.Node, producer: ir.Node | None, name: str) -> ir.Value:
        node.name, node.outputs[0].name = name, name
        if producer is not None:
            self._graph.insert_after(producer, node)
        else:
            self._graph.insert_before(self._graph[0], node)
        return node.outputs[0]

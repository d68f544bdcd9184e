"""New nodes and constants of a pass that builds a subgraph by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

# Stores a new constant: its array, dtype and name -> tensor. Large ones may go to a file.
Keep = Callable[[np.ndarray, ir.DataType, str], ir.TensorProtocol]


def initializer(graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """A new initializer, whose name starts with `name`."""
    unique, count = name, 0
    while unique in graph.initializers:
        unique, count = f"{name}_{count}", count + 1
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=unique, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


class NewNodes:
    """Adds nodes to a graph one after the other: before the node `place`, or behind the node `behind`.

    Values get a dtype and no shape; nodes and values get names from UniqueNamesPass.
    """

    def __init__(self, graph: ir.Graph, place: ir.Node, after: ir.Node | None = None) -> None:
        self._graph, self._place, self._after = graph, place, after

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None,
        attributes: Sequence[ir.Attr] = (),
        count: int = 1,
    ) -> ir.Value:
        """The first result of a new node of ONNX's domain with `count` results, all of this dtype."""
        node = ir.Node("", op_type, inputs, list(attributes), num_outputs=count)
        for value in node.outputs:
            value.type = None if dtype is None else ir.TensorType(dtype)
        if self._after is None:
            self._graph.insert_before(self._place, node)
        else:
            self._graph.insert_after(self._after, node)
            self._after = node
        return node.outputs[0]

    def constant(self, array: np.ndarray | np.generic) -> ir.Value:
        """A new initializer with these elements."""
        return initializer(self._graph, ir.Tensor(np.asarray(array)), "constant")

    def held(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A new initializer that is called as the tensor is."""
        return initializer(self._graph, tensor, tensor.name or "constant")

    def lazy(self, name: str, evaluate: Callable[[], np.ndarray], dtype: ir.DataType, dims: Sequence[int]) -> ir.Value:
        """A new initializer whose elements are computed when they are asked for."""
        tensor = ir.LazyTensor(
            lambda: ir.Tensor(evaluate(), dtype=dtype, name=name), dtype=dtype, shape=ir.Shape(dims), name=name
        )
        return initializer(self._graph, tensor, name)

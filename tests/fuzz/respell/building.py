"""Adds nodes to a graph one after the other, at one place of it: for networks, and for what takes a node's place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.new_nodes import initializer

INT64 = ir.DataType.INT64
WIDE = {ir.DataType.FLOAT16: ir.DataType.FLOAT, ir.DataType.FLOAT: ir.DataType.DOUBLE}


class Builder:
    """Adds nodes and constants. before: the node in front of which nodes are inserted; at the end without one.

    rng: draws among equivalent forms.
    """

    def __init__(self, graph: ir.Graph, rng: random.Random, before: ir.Node | None = None) -> None:
        self.graph, self.rng, self._before = graph, rng, before

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The result of a new node."""
        return self.parts(op_type, 1, *inputs, **attributes)[0]

    def parts(self, op_type: str, count: int, *inputs: ir.Value | None, **attributes: Any) -> Sequence[ir.Value]:
        """The results of a new node that has `count` of them."""
        node = ir.node(op_type, inputs, attributes, num_outputs=count)
        if self._before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self._before, node)
        return node.outputs

    def constant(self, array: np.ndarray | Sequence[int] | int, dtype: ir.DataType = INT64) -> ir.Value:
        """A new initializer; numbers are int64."""
        return initializer(self.graph, ir.tensor(np.asarray(array, dtype.numpy()), dtype=dtype), "c")

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """A constant of one element, of like's dtype, in a shape that broadcasts to like without adding dims."""
        assert like.dtype is not None and like.shape is not None
        shape = self.rng.choice([(), (1,)]) if len(like.shape) else ()
        return self.constant(np.full(shape, number), like.dtype)

    def weight(self, name: str, *shape: int, dtype: ir.DataType, size: float = 0.2, shift: float = 0.0) -> ir.Value:
        """An initializer of random elements around `shift`, as wide as `size`; equal names give equal elements."""
        draw = np.random.default_rng([ord(c) for c in name])
        array = draw.standard_normal(shape) * size + shift
        return initializer(self.graph, ir.tensor(array.astype(dtype.numpy()), dtype=dtype), name)

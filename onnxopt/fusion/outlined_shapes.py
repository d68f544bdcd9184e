"""Shapes in a function's body: computed from the dims of the function's inputs, as the kernel computes them.

Reshape(x0 [n, 4*h, c], s) -> [n, h, 4, c], s computed outside
    -> Reshape(x0, Concat(Shape(x0)[0:1], Shape(x0)[1:2] / 4, [4], Shape(x0)[2:3]))
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.fusion.index_ops import dims_of
from onnxopt.fusion.multiples import with_multiples
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.extents import Extent


def shape_of(
    value: ir.Value, region: Region, inside: Mapping[ir.Value, ir.Value], nodes: list[ir.Node], shapes: Shapes
) -> ir.Value:
    """The shape of a value of a region, computed by nodes that are added.

    inside: value of the region -> value of the body. NotAffine where a dim is unknown.
    """
    counted = with_multiples(region.nodes, region.inputs, shapes)
    body = _Body(nodes, {inside[v]: dims_of(v, counted) for v in region.inputs})
    return body.node("Concat", [body.dim(d) for d in dims_of(value, counted)], [ir.AttrInt64("axis", 0)])


class _Body:
    """The nodes of a body. inputs: the function's inputs, each with its dims."""

    def __init__(self, nodes: list[ir.Node], inputs: Mapping[ir.Value, Sequence[Extent]]):
        self._nodes, self._inputs = nodes, inputs

    def node(self, op_type: str, operands: Sequence[ir.Value], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        node = ir.Node("", op_type, operands, attributes, num_outputs=1, name=f"{op_type}_{len(self._nodes)}")
        node.outputs[0].name = f"s{len(self._nodes)}"
        self._nodes.append(node)
        return node.outputs[0]

    def dim(self, dim: Extent) -> ir.Value:
        """A dim as a tensor of one element."""
        factors = [self._symbol(symbol) for symbol in dim.symbols]
        if dim.factor != 1 or not factors:
            factors.append(self._number(dim.factor))
        return functools.reduce(lambda a, b: self.node("Mul", [a, b]), factors)

    def _symbol(self, symbol: str) -> ir.Value:
        places = [
            (dim.factor, value, axis)
            for value, dims in self._inputs.items()
            for axis, dim in enumerate(dims)
            if dim.symbols == (symbol,)
        ]
        factor, value, axis = min(places, key=lambda place: place[0])
        part = [ir.AttrInt64("start", axis), ir.AttrInt64("end", axis + 1)]
        size = self.node("Shape", [value], part)
        return size if factor == 1 else self.node("Div", [size, self._number(factor)])

    def _number(self, number: int) -> ir.Value:
        tensor = ir.tensor(np.array([number], np.int64))
        return self.node("Constant", [], [ir.AttrTensor("value", tensor)])

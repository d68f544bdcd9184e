"""Reductions over an axis of few elements become operations of its parts.

    ReduceSum(Concat(Unsqueeze(a, 1), Unsqueeze(b, 1), axis = 1) w, axes = [1]) -> a w[:, 0] + b w[:, 1]
    ReduceSum(Reshape(x [B, 2 C, H, W]) [B, 2, C, H, W], axes = [1])            -> x[:, :C] + x[:, C:]

Also ReduceMean, ReduceMax and ReduceMin, with elementwise operators before them. A kernel of rows would give such an
axis lanes of its own, and its elements are far apart. Kernels of elementwise operators read the parts where they are,
and maps of four dims keep their layout beside convolutions. Networks that select kernels or split attention
(SKNet, ResNeSt) have such sums. Floats of 16 bits are added in float32, as a reduction does.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.match import constant, integers, is_constant, is_private, operand
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass, Scope

REDUCTIONS = {"ReduceSum": "Add", "ReduceMean": "Add", "ReduceMax": "Max", "ReduceMin": "Min"}
_ADDED_WIDE = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FLOATS = _ADDED_WIDE | {ir.DataType.FLOAT}
_ELEMENTWISE = frozenset({"Add", "Cast", "Div", "Gelu", "Mul", "Neg", "Relu", "Sigmoid", "Sub", "Tanh"})


def split(graph: ir.Graph, scope: Scope) -> int:
    """Replace such reductions; how many."""
    parts = _Parts(graph, scope)
    return sum(parts.replace(node) for node in list(graph) if node.op_type in REDUCTIONS and node.domain == "")


class _Parts:
    """Parts of values along an axis."""

    def __init__(self, graph: ir.Graph, scope: Scope) -> None:
        self._graph, self._dims = graph, scope.inferred.dims

    def replace(self, node: ir.Node) -> bool:
        x = node.inputs[0]
        dims = self._dims(x)
        axis = None if dims is None or x is None or x.dtype not in _FLOATS else _axis(node, len(dims))
        if x is None or dims is None or axis is None:
            return False
        count = dims[axis]
        if not isinstance(count, int) or not 2 <= count <= numbers().max_short_axis:
            return False
        if math.prod(_sizes(dims[axis + 1 :])) < numbers().min_after_short_axis:
            return False
        new = NewNodes(self._graph, node)
        y = self._combined(new, node.op_type, [self._part(new, x, k, axis - len(dims), count) for k in range(count)])
        if node.attributes.get_int("keepdims", 1):
            y = new.add("Unsqueeze", [y, new.constant(np.array([axis], np.int64))], y.dtype)
        ir.convenience.replace_nodes_and_values(self._graph, node, [node], [], node.outputs, [y])
        return True

    def _combined(self, new: NewNodes, reduction: str, parts: list[ir.Value]) -> ir.Value:
        operator, stored = REDUCTIONS[reduction], parts[0].dtype
        wide = operator == "Add" and stored in _ADDED_WIDE
        if wide:
            to = [ir.AttrInt64("to", ir.DataType.FLOAT)]
            parts = [new.add("Cast", [part], ir.DataType.FLOAT, to) for part in parts]
        y, dtype = parts[0], parts[0].dtype
        for part in parts[1:]:
            y = new.add(operator, [y, part], dtype)
        if reduction == "ReduceMean":
            y = new.add("Mul", [y, new.constant(np.float32(1 / len(parts)))], dtype)
        return new.add("Cast", [y], stored, [ir.AttrInt64("to", stored)]) if wide and stored is not None else y

    def _part(self, new: NewNodes, value: ir.Value, index: int, axis: int, count: int) -> ir.Value:
        """Element `index` of an axis of `count` of a value that may be broadcast there, without the axis, below 0."""
        dims = self._dims(value)
        assert dims is not None
        if len(dims) < -axis:
            return value
        place = len(dims) + axis
        if dims[place] == 1:
            return self._squeezed(new, value, place)
        elements = constant(value)
        if elements is not None:
            return new.constant(elements.take(index, place))
        node = value.producer()
        if node is not None and node.domain == "":
            if node.op_type in _ELEMENTWISE and is_private(value) and self._known(node):
                operands = [self._part(new, v, index, axis, count) for v in node.inputs if v is not None]
                return new.add(node.op_type, operands, value.dtype, list(node.attributes.values()))
            if node.op_type == "Concat" and self._stacks(node, place, count):
                return self._squeezed(new, node.inputs[index], place)
            if (source := self._split_by_reshape(node, place)) is not None:
                return self._sliced(new, source, index, place, count)
        return self._squeezed(new, self._sliced(new, value, index, place, count), place)

    def _known(self, node: ir.Node) -> bool:
        return all(v is not None and self._dims(v) is not None for v in node.inputs)

    def _stacks(self, concat: ir.Node, place: int, count: int) -> bool:
        dims = [self._dims(v) for v in concat.inputs]
        if len(dims) != count or any(d is None or d[place] != 1 for d in dims):
            return False
        return concat.attributes.get_int("axis", 0) % len(dims[0] or ()) == place

    def _split_by_reshape(self, node: ir.Node, place: int) -> ir.Value | None:
        """The operand of a Reshape that splits an axis, whose parts the axis `place` counts; None for others."""
        source, dims = node.inputs[0] if node.inputs else None, self._dims(node.outputs[0])
        before = self._dims(source) if source is not None else None
        if node.op_type != "Reshape" or dims is None or before is None or len(before) != len(dims) - 1:
            return None
        sides = dims[place : place + 2]
        joined = math.prod(_sizes(sides)) if len(_sizes(sides)) == 2 else None
        alike = before[:place] == dims[:place] and before[place + 1 :] == dims[place + 2 :]
        return source if alike and before[place] == joined else None

    def _squeezed(self, new: NewNodes, value: ir.Value | None, place: int) -> ir.Value:
        """A value without an axis of one element; what an Unsqueeze added is not there to begin with."""
        assert value is not None
        node = value.producer()
        if node is not None and node.op_type == "Unsqueeze" and node.domain == "" and node.inputs[0] is not None:
            dims = self._dims(value)
            if dims is not None and [a % len(dims) for a in integers(operand(node, 1)) or []] == [place]:
                return node.inputs[0]
        return new.add("Squeeze", [value, new.constant(np.array([place], np.int64))], value.dtype)

    def _sliced(self, new: NewNodes, value: ir.Value, index: int, place: int, count: int) -> ir.Value:
        """One of so many equal parts of a value along an axis; a kernel reads such a Slice where it is."""
        dims = self._dims(value)
        assert dims is not None and isinstance(dims[place], int)
        size = dims[place] // count
        bounds = [new.constant(np.array([n], np.int64)) for n in (index * size, (index + 1) * size, place)]
        return new.add("Slice", [value, *bounds], value.dtype)


def _axis(node: ir.Node, rank: int) -> int | None:
    """The one axis of a reduction, where it is not the last one."""
    axes = integers(operand(node, 1)) or list(node.attributes.get_ints("axes", ()) or ())
    if len(axes) != 1 or (operand(node, 1) is not None and not is_constant(operand(node, 1))):
        return None
    axis = axes[0] % rank
    return axis if axis < rank - 1 else None


def _sizes(dims: object) -> list[int]:
    return [d for d in dims if isinstance(d, int)]  # type: ignore[attr-defined]


RULES = (Pass(lambda model, scope: split(model.graph, scope) if scope.gpu else 0),)

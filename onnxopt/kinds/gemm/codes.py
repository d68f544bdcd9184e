"""Operands of products of codes, in the form that graph/passes/products_of_codes.py gives them.

The product reads the codes as float16, minus their zero point: of a weight they are a constant, of an activation the
result of another kernel. What the graph does to them around the product is undone or goes into alpha.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion.operands import constant
from onnxopt.graph.codes import constant as elements
from onnxopt.graph.codes import is_dequantize, is_plain

_SIXTEEN_BITS = ir.DataType.FLOAT16


@dataclasses.dataclass(frozen=True)
class Codes:
    """One operand. value: the codes in 16 bits. nodes: from there to the product. unread: what only the nodes read.

    turned: the last two dims of `value` are swapped first. tied: the codes are an activation's.
    """

    value: ir.Value
    scale: float
    nodes: tuple[ir.Node, ...]
    unread: tuple[ir.Value, ...] = ()
    turned: bool = False

    @property
    def tied(self) -> bool:
        return bool(self.unread)


def operands(node: ir.Node) -> tuple[Codes, Codes] | None:
    """Both operands of a product of codes, None where the node is no such product."""
    if len(node.inputs) < 2 or node.inputs[0] is node.inputs[1]:
        return None
    found = [_operand(value) for value in node.inputs[:2]]
    if found[0] is None or found[1] is None or not (found[0].tied or found[1].tied):
        return None
    return found[0], found[1]


def _operand(value: ir.Value | None) -> Codes | None:
    dequantize = _only(value)
    scale = None if dequantize is None else _scale(dequantize)
    if dequantize is None or scale is None:
        return None
    inner = _only(dequantize.inputs[0])
    if inner is None:
        return None
    if inner.op_type == "Reshape":
        return _activation(dequantize, inner, scale)
    return _weight(dequantize, inner, scale)


def _activation(dequantize: ir.Node, reshape: ir.Node, scale: float) -> Codes | None:
    """DQ(Reshape(x, Shape(x16))) where x16 is Cast(DQ(x, 1)) with the same zero point."""
    shape = _only(reshape.inputs[1])
    sixteen = shape.inputs[0] if shape is not None and shape.op_type == "Shape" and not shape.attributes else None
    cast = None if sixteen is None else sixteen.producer()
    if shape is None or sixteen is None or cast is None or cast.op_type != "Cast":
        return None
    exact = cast.inputs[0].producer() if cast.inputs[0] is not None else None
    if cast.attributes.get_int("to", 0) != _SIXTEEN_BITS or exact is None or not is_dequantize(exact):
        return None
    codes = reshape.inputs[0]
    if codes is None or exact.inputs[0] is not codes or not is_plain(exact) or not is_plain(dequantize):
        return None
    if _scale(exact) != 1.0 or _zero(exact) != _zero(dequantize):
        return None
    return Codes(sixteen, scale, (shape, reshape, dequantize), (codes,))


def _weight(dequantize: ir.Node, cast: ir.Node, scale: float) -> Codes | None:
    """DQ(Cast([Add(Cast(]Transpose(W16)[), zero)])), with a Transpose or without."""
    nodes, node = [dequantize, cast], cast
    if node.op_type == "Cast" and (added := _only(node.inputs[0])) is not None and added.op_type == "Add":
        widened = _only(added.inputs[0])
        if widened is None or widened.op_type != "Cast":
            return None
        nodes += [added, widened]
        node = widened
    if node.op_type != "Cast":
        return None
    value, turned = node.inputs[0], False
    transpose = _only(value)
    if transpose is not None and transpose.op_type == "Transpose":
        nodes.append(transpose)
        value, turned = transpose.inputs[0], True
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return Codes(value, scale, tuple(reversed(nodes)), turned=turned) if value.dtype == _SIXTEEN_BITS else None


def _only(value: ir.Value | None) -> ir.Node | None:
    """The node behind a value that nobody else reads."""
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    producer = value.producer()
    return producer if producer is not None and (producer.domain == "" or is_dequantize(producer)) else None


def _scale(dequantize: ir.Node) -> float | None:
    """The scale of a DQ, None where it is not one number for the whole tensor."""
    if not is_dequantize(dequantize):
        return None
    array = elements(dequantize.inputs[1])
    if array is None or array.size == 0 or (array != array.flat[0]).any():
        return None
    return float(array.flat[0])


def _zero(dequantize: ir.Node) -> int:
    tensor = constant(dequantize.inputs[2]) if len(dequantize.inputs) > 2 else None
    return 0 if tensor is None else int(tensor.numpy().reshape(()))

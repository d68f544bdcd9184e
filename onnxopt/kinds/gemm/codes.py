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

    turned: the last two dims of `value` are swapped first. exact: the nodes themselves tell that `value` has the codes;
    those of a weight of integers tell it together with the other operand's.
    """

    value: ir.Value
    scale: float
    nodes: tuple[ir.Node, ...]
    unread: tuple[ir.Value, ...] = ()
    turned: bool = False
    exact: bool = False


def operands(node: ir.Node) -> tuple[Codes, Codes] | None:
    """Both operands of a product of codes, None where the node is no such product."""
    if len(node.inputs) < 2 or node.inputs[0] is node.inputs[1]:
        return None
    found = [_operand(value) for value in node.inputs[:2]]
    if found[0] is None or found[1] is None or not (found[0].exact or found[1].exact):
        return None
    return found[0], found[1]


def _operand(value: ir.Value | None) -> Codes | None:
    if (numbers := _of_floats(value)) is not None:
        return numbers
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
    return Codes(sixteen, scale, (shape, reshape, dequantize), (codes,), exact=True)


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
    if (turn := _only(value)) is not None and _turns_constant(turn):
        nodes.append(turn)
        value, turned = turn.inputs[0], True
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return Codes(value, scale, tuple(reversed(nodes)), turned=turned) if value.dtype == _SIXTEEN_BITS else None


def _of_floats(value: ir.Value | None) -> Codes | None:
    """Mul(Cast(x16), scale) in float32, with a Transpose of a weight in front and a Cast to float16 behind, or not."""
    node, nodes = _only(value), []
    if node is not None and node.op_type == "Cast" and node.attributes.get_int("to", 0) == _SIXTEEN_BITS:
        nodes.append(node)
        node = _only(node.inputs[0])
    factor = constant(node.inputs[1]) if node is not None and node.op_type == "Mul" else None
    cast = _only(node.inputs[0]) if node is not None and factor is not None else None
    if node is None or factor is None or cast is None or cast.op_type != "Cast" or len(factor.shape) > 0:
        return None
    sixteen, turned = cast.inputs[0], False
    if cast.attributes.get_int("to", 0) != ir.DataType.FLOAT or factor.dtype != ir.DataType.FLOAT or sixteen is None:
        return None
    nodes += [node, cast]
    if (turn := _only(sixteen)) is not None and _turns_constant(turn) and turn.inputs[0] is not None:
        nodes.append(turn)
        sixteen, turned = turn.inputs[0], True
    if sixteen.dtype != _SIXTEEN_BITS:
        return None
    return Codes(sixteen, float(factor.numpy().reshape(())), tuple(reversed(nodes)), turned=turned, exact=True)


def _turns_constant(node: ir.Node) -> bool:
    """Whether a node is a Transpose of a constant matrix."""
    source = node.inputs[0] if node.op_type == "Transpose" and node.domain == "" else None
    if source is None or source.const_value is None or source.is_graph_input():
        return False
    return "perm" in node.attributes and list(node.attributes["perm"].as_ints()) == [1, 0]


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

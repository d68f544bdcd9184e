"""Operands of products of codes, in the form that graph/passes/codes/products_of_codes.py gives them.

The product reads the codes as float16, minus their zero point, or as 8-bit floats: of a weight they are a constant, of
an activation the result of another kernel. What the graph does to them around the product is undone or goes into alpha.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion.operands import constant
from onnxopt.graph.codes import is_dequantize, is_plain
from onnxopt.graph.match import constant as elements

_SIXTEEN_BITS = ir.DataType.FLOAT16
_EIGHT_BITS = ir.DataType.FLOAT8E4M3FN


@dataclasses.dataclass(frozen=True)
class Codes:
    """One operand. value: the codes as the product reads them. nodes: from there to the product. unread: what only they
    read.

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
    a, b = (_operand(value) for value in node.inputs[:2])
    if a is None or b is None or not (a.exact or b.exact) or a.value.dtype != b.value.dtype:
        return None
    if a.value.dtype == _EIGHT_BITS and not (
        _is_stored_in_rows(node, "transA", a) and not _is_stored_in_rows(node, "transB", b)
    ):
        return None
    return a, b


def _is_stored_in_rows(node: ir.Node, attribute: str, codes: Codes) -> bool:
    """Whether the product reads an operand as it lies."""
    return codes.turned == bool(node.attributes.get_int(attribute, 0))


def _operand(value: ir.Value | None) -> Codes | None:
    if (numbers := _float_operands(value)) is not None:
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


def _float_operands(value: ir.Value | None) -> Codes | None:
    """Mul(Cast(x), scale) in float32; behind the first Cast a Transpose of a matrix, and at the end a Cast to float16,
    or not."""
    node, nodes = _only(value), []
    if node is not None and node.op_type == "Cast" and node.attributes.get_int("to", 0) == _SIXTEEN_BITS:
        nodes.append(node)
        node = _only(node.inputs[0])
    factor = constant(node.inputs[1]) if node is not None and node.op_type == "Mul" else None
    if node is None or factor is None or factor.dtype != ir.DataType.FLOAT or len(factor.shape) > 0:
        return None
    nodes.append(node)
    cast, turned = _only(node.inputs[0]), False
    if cast is not None and cast.op_type == "Transpose" and (turned := _turns_matrix(cast)):
        nodes.append(cast)
        cast = _only(cast.inputs[0])
    if cast is None or cast.op_type != "Cast" or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        return None
    nodes.append(cast)
    codes = cast.inputs[0]
    if codes is None or codes.dtype not in (_EIGHT_BITS, _SIXTEEN_BITS):
        return None
    return Codes(codes, float(factor.numpy().reshape(())), tuple(reversed(nodes)), turned=turned, exact=True)


def _turns_constant(node: ir.Node) -> bool:
    """Whether a node is a Transpose of a constant matrix."""
    source = node.inputs[0] if node.op_type == "Transpose" and node.domain == "" else None
    if source is None or source.const_value is None or source.is_graph_input():
        return False
    return _turns_matrix(node)


def _turns_matrix(node: ir.Node) -> bool:
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

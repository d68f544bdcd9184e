"""Attention that standard operators compute, as one kernel: graph/rewrite/attention/attention_nodes.py writes it so.

Reshape(Transpose(MatMul(P, v), [0, 2, 1, 3]), [B, S, N V])     P = Softmax(scores)
scores = MatMul(q, k^T) scale, capped or not, with a mask added or none
P = Slice(Softmax(Concat(scores, Expand(Reshape(sinks), Concat(Shape(q), 1)))), 0:-1) with sinks
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention import hidden_rows, local_mask, operands
from onnxopt.kinds.flash_attention.attention import Attention, Scores, attention_of
from onnxopt.kinds.flash_attention.operands import Operand
from onnxopt.kinds.flash_attention.views import BY_HEAD, TURNED, integers

_SWAPPED = (0, 2, 1, 3)


@dataclasses.dataclass
class _Walk:
    """From the last node of an attention backward. nodes: that were passed."""

    nodes: list[ir.Node]

    def to(self, value: ir.Value | None, op_type: str) -> ir.Node | None:
        """The ONNX node of this type that makes a value, where nothing else than the node passed last reads it."""
        node = None if value is None else value.producer()
        if value is None or node is None or (node.domain, node.op_type) != ("", op_type) or len(node.outputs) != 1:
            return None
        if value.is_graph_output() or len(value.uses()) != 1:
            return None
        self.nodes.append(node)
        return node

    def through(self, value: ir.Value | None, op_type: str) -> tuple[ir.Value | None, float] | None:
        """x and c of Mul(x, c) or Div(x, c) with a constant c."""
        node = self.to(value, op_type)
        number = None if node is None else local_mask.number(node.inputs[1])
        return None if node is None or number is None else (node.inputs[0], number)


class _Nodes(NamedTuple):
    """What the nodes of an attention read. product: q k^T. added: the node that adds the mask. keys: of the product."""

    product: ir.Node
    q: ir.Value
    keys: ir.Value
    v: ir.Value
    scale: float
    cap: float | None
    added: ir.Node | None
    sinks: ir.Value | None


def attention(node: ir.Node, shapes: Shapes) -> Attention | str | None:
    """The attention that ends with this Reshape; why no kernel runs it, or None where it is no attention."""
    if (node.domain, node.op_type) != ("", "Reshape"):
        return None
    walk = _Walk([node])
    match = _nodes(node, walk)
    if match is None:
        return None
    masks = () if match.added is None else (match.added.inputs[1],)
    q, zeroed = hidden_rows.unzeroed(match.q, masks, match.product)
    dims, result_dims = shapes.dims(q), shapes.dims(node.outputs[0])
    if dims is None or result_dims is None or len(dims) != 4 or len(result_dims) != 3 or not isinstance(dims[1], int):
        return "The number of heads is unknown, or they are not concatenated after the attention"
    mask = None if match.added is None else match.added.inputs[1]
    window = None
    if mask is not None and match.added is not None:
        window = local_mask.window_of(mask, (match.added, *zeroed), (q, 2), (match.keys, 3))
        if window is None and len(shapes.dims(mask) or ()) != 4:
            return f"The rank of the mask `{mask.name}` is not 4"
    mask_nodes = window.nodes if window is not None else ()
    separate = (Operand("q", q, BY_HEAD), Operand("k", match.keys, TURNED), Operand("v", match.v, BY_HEAD))
    read = operands.apart(separate, dims[1], (*walk.nodes, *mask_nodes, *zeroed), shapes)
    if isinstance(read, str):
        return read
    nodes = tuple(dict.fromkeys((*read.nodes, *mask_nodes, *zeroed, *walk.nodes)))
    scores = Scores(match.scale, mask, match.sinks, match.cap)
    if window is not None:
        scores = scores._replace(bias=window.rest, before=window.before, after=window.after)
    scores = scores._replace(hidden=hidden_rows.weights(scores.bias, window, bool(zeroed)))
    return attention_of(node, nodes, read, dims[1], scores, shapes, alone=True)


def _nodes(last: ir.Node, walk: _Walk) -> _Nodes | None:
    """What the attention reads that ends with this node; None where it is none."""
    turned = walk.to(last.inputs[0], "Transpose")
    product = None if turned is None else walk.to(turned.inputs[0], "MatMul")
    if turned is None or product is None or turned.attributes.get_ints("perm") != _SWAPPED:
        return None
    sliced = walk.to(product.inputs[0], "Slice")
    softmax = walk.to(product.inputs[0] if sliced is None else sliced.inputs[0], "Softmax")
    if softmax is None or softmax.attributes.get_int("axis", -1) not in (-1, 3):
        return None
    scores, columns = softmax.inputs[0], None
    if sliced is not None:
        concat = walk.to(scores, "Concat")
        if concat is None or len(concat.inputs) != 2 or [integers(v) for v in sliced.inputs[1:]] != [[0], [-1], [3]]:
            return None
        scores, columns = concat.inputs
    added = walk.to(scores, "Add")
    scaled = _scores(scores if added is None else added.inputs[0], walk)
    if scaled is None or product.inputs[1] is None:
        return None
    product_of_scores, scale, cap = scaled
    q, keys = product_of_scores.inputs
    sinks = None if columns is None or q is None else _sinks(columns, q, walk)
    if q is None or keys is None or (columns is not None and sinks is None):
        return None
    return _Nodes(product_of_scores, q, keys, product.inputs[1], scale, cap, added, sinks)


def _scores(value: ir.Value | None, walk: _Walk) -> tuple[ir.Node, float, float | None] | None:
    """The product of scores, their scale and their cap."""
    scaled = walk.through(value, "Mul")
    if scaled is None:
        return None
    cap, tanh = scaled[1], walk.to(scaled[0], "Tanh")
    if tanh is not None:
        capped = walk.through(tanh.inputs[0], "Div")
        scaled = None if capped is None or capped[1] != cap else walk.through(capped[0], "Mul")
    product = None if scaled is None else walk.to(scaled[0], "MatMul")
    if scaled is None or product is None:
        return None
    return product, scaled[1], cap if tanh is not None else None


def _sinks(columns: ir.Value, q: ir.Value, walk: _Walk) -> ir.Value | None:
    """The sinks (N) of Expand(Reshape(sinks, [1, -1, 1, 1]), Concat(Shape(q, end=3), [1]))."""
    expand = walk.to(columns, "Expand")
    turned = None if expand is None else walk.to(expand.inputs[0], "Reshape")
    shape = None if expand is None else walk.to(expand.inputs[1], "Concat")
    q_shape = None if shape is None else walk.to(shape.inputs[0], "Shape")
    if turned is None or shape is None or q_shape is None or q_shape.inputs[0] is not q:
        return None
    if integers(turned.inputs[1]) != [1, -1, 1, 1] or integers(shape.inputs[1]) != [1]:
        return None
    whole = (q_shape.attributes.get_int("start", 0), q_shape.attributes.get_int("end", 0)) == (0, 3)
    return turned.inputs[0] if whole else None

"""Which attention a node ends, in either spelling: MultiHeadAttention, or standard operators up to a Reshape."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention import multi_head, standard_ops
from onnxopt.kinds.flash_attention.attention import Attention
from onnxopt.kinds.flash_attention.codes import attending, with_codes


def attention(node: ir.Node, shapes: Shapes) -> Attention | str | None:
    """The attention that ends with a node; why no kernel of this kind can run it, or None where it is none."""
    if (node.domain, node.op_type) == multi_head.OPERATOR:
        return multi_head.attention(node, shapes)
    return standard_ops.attention(node, shapes)


def attention_of(node: ir.Node, shapes: Shapes) -> Attention:
    """The attention of the last node of a region that was found. ValueError where there is none."""
    last = attending(node)
    match = attention(last, shapes)
    if match is None or isinstance(match, str):
        raise ValueError(f"`{node.name}` is no attention of this kind: {match or node.op_type}")
    return match if last is node else with_codes(match, shapes)

"""Biases of strided transposed convolutions over a depth, as sums of their own, which the next kernel takes in.

    ConvTranspose(x, w, b) -> Add(ConvTranspose(x, w), b')        b' [K, 1, 1, 1]

cuDNN has kernels on the matrix units for these convolutions alone: with a bias, a residual or an activation it offers
one engine, which runs without them (9.24, asked for an H200; kinds/convolution leaves what follows to other kernels).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.layout.forms import CONVOLVED, is_plane_by_plane, rank
from onnxopt.graph.layout.weights import reordered
from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.new_nodes import NewNodes

_RANK = 5


def part_biases(graph: ir.Graph) -> int:
    """Change the convolutions in place; how many. Shapes have been inferred."""
    nodes = [node for node in graph if _is_strided(node)]
    for node in nodes:
        _write(graph, node)
    return len(nodes)


def _is_strided(node: ir.Node) -> bool:
    if node.op_type != "ConvTranspose" or node.domain != "" or rank(node.inputs[0]) != _RANK or len(node.inputs) < 3:
        return False
    weight, bias, of = node.inputs[1], node.inputs[2], node.attributes
    if bias is None or bias.dtype not in CONVOLVED or not is_constant(bias) or rank(bias) != 1:
        return False
    if weight is None or weight.const_value is None or is_plane_by_plane(node, weight.const_value.shape.numpy()[2:]):
        return False
    strides, pads = of.get_ints("strides", (1, 1, 1)), tuple(of.get_ints("pads", (0,) * 6))
    over_depth_alone = max(*weight.const_value.shape.numpy()[3:], *strides[1:]) == 1 and not any(pads[1:3] + pads[4:])
    return max(strides) > 1 and not over_depth_alone


def _write(graph: ir.Graph, node: ir.Node) -> None:
    bias, old = node.inputs[2], node.outputs[0]
    assert bias is not None and bias.const_value is not None
    (count,) = bias.const_value.shape.numpy()
    term = reordered(bias.const_value, (), (count, 1, 1, 1), f"{bias.name}_of_channels").const_value
    assert term is not None
    new = NewNodes(graph, node)
    bare = new.add("ConvTranspose", list(node.inputs[:2]), old.dtype, list(node.attributes.values()))
    bare.shape = old.shape
    result = new.add("Add", [bare, new.held(term)], old.dtype)
    result.name, result.shape = old.name, old.shape
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    graph.remove(node, safe=True)

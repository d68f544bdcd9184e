"""Volumes of one or few channels: the planes that a window covers become channels of images.

    Conv(x [N, C, D, H, W], w [K, C, T, R, S]) -> Conv(Concat(x at each of T places), w')     w' [K, T C, 1, R, S]

cuDNN's products take channels in vectors, and one channel leaves most of a vector idle; the kernel of images of few
channels takes T C of them (kinds/image_convolution), and the Concat is small beside the K channels of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.layout.forms import CONVOLVED, is_plane_by_plane, is_quantized, operand, rank
from onnxopt.graph.layout.weights import reordered
from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.program.image_convolution import FILTERS, MAX_CHANNELS, MAX_FILTERS, ImageConvolution
from onnxopt.program.window import Depth, Window

_RANK = 5
_DEPTH = 2  # the axis


def join_planes(graph: ir.Graph) -> int:
    """Change the convolutions in place; how many. Shapes have been inferred. Nodes without use remain."""
    count = 0
    for node in list(graph):
        found = _window(node)
        if found is not None:
            _write(graph, node, *found)
            count += 1
    return count


def _window(node: ir.Node) -> tuple[Depth, Window, int] | None:
    """How a Conv goes over the depth and over a plane, and the planes of its result; None where it stays."""
    if node.op_type != "Conv" or node.domain != "" or rank(node.inputs[0]) != _RANK or is_quantized(node):
        return None
    x, weight, of = operand(node, 0), operand(node, 1), node.attributes
    depth = None if x.shape is None else x.shape[_DEPTH]
    if x.dtype not in CONVOLVED or not isinstance(depth, int) or not is_constant(weight):
        return None
    assert weight.const_value is not None
    filters, channels, *kernel = weight.const_value.shape.numpy()
    fits = kernel[0] * channels <= MAX_CHANNELS and filters % FILTERS == 0 and filters <= MAX_FILTERS
    if not fits or of.get_int("group", 1) != 1 or of.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    strides, dilations = (of.get_ints(name, (1, 1, 1)) for name in ("strides", "dilations"))
    front, top, left, back, bottom, right = of.get_ints("pads", (0,) * 6)
    if is_plane_by_plane(node, kernel) or tuple(of.get_ints("kernel_shape", kernel)) != tuple(kernel):
        return None
    through = Depth(kernel[0], strides[0], dilations[0], front, back)
    plane = Window(
        (kernel[1], kernel[2]), (strides[1], strides[2]), (dilations[1], dilations[2]), (top, left, bottom, right)
    )
    room = depth + front + back - dilations[0] * (kernel[0] - 1) - 1
    if through.problem() or plane.problem() or ImageConvolution.why_not(window=plane) or room < 0:
        return None
    return through, plane, room // strides[0] + 1


def _write(graph: ir.Graph, node: ir.Node, through: Depth, plane: Window, planes: int) -> None:
    new, x, weight = NewNodes(graph, node), operand(node, 0), operand(node, 1)
    assert x.shape is not None and weight.const_value is not None
    batch, channels, depth, *sizes = x.shape
    assert isinstance(depth, int)
    padded = x
    if through.front or through.back:
        pads = new.constant(np.array([0, 0, through.front, 0, 0, 0, 0, through.back, 0, 0], np.int64))
        padded = new.add("Pad", [x, pads], x.dtype)
        padded.shape = ir.Shape([batch, channels, depth + through.front + through.back, *sizes])
    parts = [_planes(new, padded, t * through.dilation, planes, through.stride) for t in range(through.kernel)]
    joined = new.add("Concat", parts, x.dtype, [ir.AttrInt64("axis", 1)])
    filters, _, *kernel = weight.const_value.shape.numpy()
    count = through.kernel * weight.const_value.shape.numpy()[1]
    joined.shape = ir.Shape([batch, count, planes, *sizes])
    top, left, bottom, right = plane.pads
    attributes = {
        "kernel_shape": (1, *plane.kernel), "strides": (1, *plane.strides), "pads": (0, top, left, 0, bottom, right),
    }  # fmt: skip
    turned = new.held(_turned(weight, (filters, count, 1, *kernel[1:])))
    inputs = [joined, turned, *node.inputs[2:]]
    result = new.add("Conv", inputs, x.dtype, ir.convenience.convert_attributes(attributes))
    old = node.outputs[0]
    result.name, result.shape = old.name, old.shape
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _planes(new: NewNodes, x: ir.Value, first: int, count: int, step: int) -> ir.Value:
    """So many planes of x, from one on."""
    numbers = [new.constant(np.array([n], np.int64)) for n in (first, first + (count - 1) * step + 1, _DEPTH, step)]
    part = new.add("Slice", [x, *numbers], x.dtype)
    assert x.shape is not None
    part.shape = ir.Shape([*x.shape[:_DEPTH], count, *x.shape[_DEPTH + 1 :]])
    return part


def _turned(weight: ir.Value, dims: Sequence[int]) -> ir.TensorProtocol:
    """[K, C, T, R, S] as [K, T C, 1, R, S]; it stays lazy."""
    tensor = weight.const_value
    assert tensor is not None
    k, c, *kernel = tensor.shape.numpy()
    by_planes = reordered(tensor, (0, 2, 1, 3, 4), (k, kernel[0], c, *kernel[1:]), f"{weight.name}_planes")
    assert by_planes.const_value is not None
    lazy = reordered(by_planes.const_value, (), tuple(dims), f"{weight.name}_planes").const_value
    assert lazy is not None
    return lazy

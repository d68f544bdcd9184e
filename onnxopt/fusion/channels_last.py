"""Convolutions in the form that the layout pass writes: a Conv between two Transposes, the rest of the graph NHWC.

    x [N, H, W, C] -> Transpose -> Conv -> Transpose -> y [N, Ho, Wo, K]

Pools have the same form. Volumes have a depth D after N. Where a window sees one plane of them at a time, they are N D
images.

A constant weight, or its codes, lies in the order that kernels read, and a Transpose or a Reshape turns it into Conv's
own order: [K, R, S, C / group] for most convolutions, [R, S, 1, K] for depthwise ones, [K, C] for 1x1 ones,
[C, R, S, K / group] for a ConvTranspose. A window over the depth of a volume has its own size there before R. Where it
has none, a Reshape to Conv's dims follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph import layout
from onnxopt.graph.codes import is_dequantize
from onnxopt.graph.layout.orders import RANKS, turns_first, turns_last
from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.window import Depth, Window

# Operators that slide a window over [N, C, H, W]; the layout pass puts each of them between two Transposes.
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_WINDOWS = CONVOLUTIONS | {"MaxPool", "AveragePool"}
KRSC = (0, 3, 1, 2)  # [K, R, S, C / group] to Conv's [K, C / group, R, S]
KTRSC = (0, 4, 1, 2, 3)  # the same with the window's depth
RSK = (3, 2, 0, 1)  # [R, S, 1, K] to Conv's [K, 1, R, S]


@dataclasses.dataclass(frozen=True)
class Sandwich:
    """A Conv or ConvTranspose of images or volumes and the nodes that belong to it.

    nodes: the node that turns the weight, if any, the DequantizeLinear of its codes, the Transpose of x, the Conv, and
    the Transpose of its result. window: None where the kernel's size is not known. x: [N, H, W, C], or with D. w: the
    weight as it is stored. weight_order: the permutation that turns w into Conv's order, empty where w is Conv's own
    input or a [K, C] matrix. bias: [K], or None. y: [N, Ho, Wo, K], or with Do.
    """

    conv: ir.Node
    nodes: tuple[ir.Node, ...]
    window: Window | None
    x: ir.Value
    w: ir.Value
    weight_order: tuple[int, ...]
    bias: ir.Value | None
    y: ir.Value

    @property
    def group(self) -> int:
        return self.conv.attributes.get_int("group", 1)

    @property
    def is_transposed(self) -> bool:
        return self.conv.op_type == "ConvTranspose"

    @property
    def output_padding(self) -> tuple[int, int]:
        """Rows and columns that a ConvTranspose adds to its result."""
        *_, down, across = self.conv.attributes.get_ints("output_padding", (0, 0))
        return down, across

    @property
    def depth_padding(self) -> int:
        """Planes that a ConvTranspose adds to its result."""
        return next(iter(self.conv.attributes.get_ints("output_padding", ())[:-2]), 0)


def sandwich(conv: ir.Node, shapes: Shapes) -> Sandwich | str:
    """The convolution around a Conv or ConvTranspose in NHWC, or the reason why the node is in no such form."""
    if conv.op_type not in CONVOLUTIONS or conv.domain != "" or conv.inputs[0] is None or conv.inputs[1] is None:
        return f"{conv.op_type} is no Conv with two inputs"
    around = between_transposes(conv, shapes)
    if isinstance(around, str):
        return around
    turn, back = around
    x = turn.inputs[0]
    assert x is not None
    weight, dequantize = conv.inputs[1], conv.inputs[1].producer()
    if is_dequantize(dequantize) and dequantize is not None and dequantize.inputs[0] is not None:
        weight = dequantize.inputs[0]
    w, order, turned = _stored_weight(weight)
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    if is_dequantize(dequantize) and dequantize is not None:
        turned = (*turned, dequantize)
    nodes = (*turned, turn, conv, back)
    window = window_of(conv, (shapes.dims(conv.inputs[1]) or ())[2:])
    return Sandwich(conv, nodes, window, x, w, order, bias, back.outputs[0])


def between_transposes(node: ir.Node, shapes: Shapes) -> tuple[ir.Node, ir.Node] | str:
    """The Transposes around a Conv or a pool in NHWC, or the reason why the node is in no such form."""
    source, result, op = node.inputs[0], node.outputs[0], node.op_type
    if len(shapes.dims(result) or ()) not in RANKS:
        return f"The {op} is not two-dimensional or three-dimensional"
    turn = source.producer() if source is not None else None
    if source is None or turn is None or not turns_first(turn) or not is_private(source):
        return f"The {op}'s input is NCHW, or other nodes read it too"
    readers = list(result.uses())
    if len(readers) != 1 or result.is_graph_output() or not turns_last(readers[0].node):
        return f"The {op}'s result is NCHW, or other nodes read it too"
    return turn, readers[0].node


def window_of(node: ir.Node, kernel_dims: Sequence[object] = ()) -> Window | None:
    """The window of a Conv or a pool. kernel_dims: the weight's dims after the first two, for a Conv without
    kernel_shape."""
    of = node.attributes
    stated = of.get_ints("kernel_shape", kernel_dims)
    kernel = [side for side in stated if isinstance(side, int)]
    if len(kernel) < len(stated) or len(kernel) not in (2, 3):
        return None
    strides, dilations = (of.get_ints(name, (1,) * len(kernel)) for name in ("strides", "dilations"))
    auto_pad, none = of.get_string("auto_pad", "NOTSET"), (0,) * 2 * len(kernel)
    *front, top, left = (pads := of.get_ints("pads", none) if auto_pad == "NOTSET" else none)[: len(kernel)]
    *back, bottom, right = pads[len(kernel) :]
    through = Depth(kernel[0], strides[0], dilations[0], front[0], back[0]) if len(kernel) == 3 else None
    depth = None if through is None or through.is_pointwise else through
    down, across = kernel[-2:]
    sides, steps = (down, across), (strides[-2], strides[-1])
    return Window(sides, steps, (dilations[-2], dilations[-1]), (top, left, bottom, right), auto_pad, depth)


def around_window(node: ir.Node) -> ir.Node | None:
    """The convolution or pool whose Transpose, by the layout pass, this node is. None for other nodes.

    Such a Transpose is free: it becomes part of the operator's kernel, or the execution provider cancels it.
    """
    source, result = node.inputs[0], node.outputs[0]
    if turns_first(node) and layout.is_channels_last(source) and is_private(result):
        inner: ir.Node | None = next(iter(result.consumers()))
    elif turns_last(node) and layout.is_channels_last(result) and source is not None and is_private(source):
        inner = source.producer()
    else:
        return None
    return inner if inner is not None and inner.op_type in _WINDOWS and inner.domain == "" else None


def _stored_weight(weight: ir.Value) -> tuple[ir.Value, tuple[int, ...], tuple[ir.Node, ...]]:
    nodes: list[ir.Node] = []
    order: tuple[int, ...] = ()
    stored, node = weight, weight.producer()
    while node is not None and node.domain == "" and is_private(stored) and not order:
        if node.op_type == "Transpose":
            order = tuple(node.attributes.get_ints("perm", ()))
        elif node.op_type != "Reshape" or nodes or not is_constant(node.inputs[1]):
            break
        nodes.insert(0, node)
        source = node.inputs[0]
        assert source is not None
        stored, node = source, source.producer()
    return (stored, order, tuple(nodes)) if nodes and is_constant(stored) else (weight, (), ())

"""Convolutions in the form that the layout pass writes: a Conv between two Transposes, the rest of the graph NHWC.

    x [N, H, W, C] -> Transpose -> Conv -> Transpose -> y [N, Ho, Wo, K]

Pools have the same form.

A constant weight lies in the order that kernels read, and a Transpose or a Reshape turns it into Conv's own order:
[K, R, S, C / group] for most convolutions, [R, S, 1, K] for depthwise ones, [K, C] for 1x1 ones,
[C, R, S, K / group] for a ConvTranspose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph import layout
from onnxopt.graph.layout.orders import TO_NCHW, TO_NHWC
from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.window import Window

# Operators that slide a window over [N, C, H, W]; the layout pass puts each of them between two Transposes.
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_WINDOWS = CONVOLUTIONS | {"MaxPool", "AveragePool"}
KRSC = (0, 3, 1, 2)  # [K, R, S, C / group] to Conv's [K, C / group, R, S]
RSK = (3, 2, 0, 1)  # [R, S, 1, K] to Conv's [K, 1, R, S]


@dataclasses.dataclass(frozen=True)
class Sandwich:
    """A Conv or ConvTranspose of rank 4 and the nodes that belong to it.

    nodes: the node that turns the weight, if any, the Transpose of x, the Conv, and the Transpose of its result.
    window: None where the kernel's size is not known. x: [N, H, W, C]. w: the weight as it is stored. weight_order: the
    permutation that turns w into Conv's order, empty where w is Conv's own input or a [K, C] matrix. bias: [K], or
    None. y: [N, Ho, Wo, K].
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
        down, across = self.conv.attributes.get_ints("output_padding", (0, 0))
        return down, across


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
    w, order, turned = _stored_weight(conv.inputs[1])
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    nodes = (*turned, turn, conv, back)
    window = window_of(conv, (shapes.dims(conv.inputs[1]) or ())[2:])
    return Sandwich(conv, nodes, window, x, w, order, bias, back.outputs[0])


def between_transposes(node: ir.Node, shapes: Shapes) -> tuple[ir.Node, ir.Node] | str:
    """The Transposes around a Conv or a pool in NHWC, or the reason why the node is in no such form."""
    source, result, op = node.inputs[0], node.outputs[0], node.op_type
    if len(shapes.dims(result) or ()) != 4:
        return f"The {op} is not two-dimensional"
    turn = source.producer() if source is not None else None
    if source is None or turn is None or not _transposes(turn, TO_NCHW) or not is_private(source):
        return f"The {op}'s input is NCHW, or other nodes read it too"
    readers = list(result.uses())
    if len(readers) != 1 or result.is_graph_output() or not _transposes(readers[0].node, TO_NHWC):
        return f"The {op}'s result is NCHW, or other nodes read it too"
    return turn, readers[0].node


def window_of(node: ir.Node, kernel_dims: Sequence[object] = ()) -> Window | None:
    """The window of a Conv or a pool. kernel_dims: the weight's last two dims, for a Conv without kernel_shape."""
    of = node.attributes
    kernel = _pair(of.get_ints("kernel_shape", kernel_dims))
    if kernel is None:
        return None
    strides, dilations = (_pair(of.get_ints(name, (1, 1))) for name in ("strides", "dilations"))
    auto_pad = of.get_string("auto_pad", "NOTSET")
    top, left, bottom, right = of.get_ints("pads", (0, 0, 0, 0)) if auto_pad == "NOTSET" else (0, 0, 0, 0)
    assert strides is not None and dilations is not None
    return Window(kernel, strides, dilations, (top, left, bottom, right), auto_pad)


def _pair(sizes: Sequence[object]) -> tuple[int, int] | None:
    if len(sizes) != 2 or not isinstance(sizes[0], int) or not isinstance(sizes[1], int):
        return None
    return sizes[0], sizes[1]


def around_window(node: ir.Node) -> ir.Node | None:
    """The convolution or pool whose Transpose, by the layout pass, this node is. None for other nodes.

    Such a Transpose is free: it becomes part of the operator's kernel, or the execution provider cancels it.
    """
    source, result = node.inputs[0], node.outputs[0]
    if _transposes(node, TO_NCHW) and layout.is_channels_last(source) and is_private(result):
        inner: ir.Node | None = next(iter(result.consumers()))
    elif _transposes(node, TO_NHWC) and layout.is_channels_last(result) and source is not None and is_private(source):
        inner = source.producer()
    else:
        return None
    return inner if inner is not None and inner.op_type in _WINDOWS and inner.domain == "" else None


def _stored_weight(weight: ir.Value) -> tuple[ir.Value, tuple[int, ...], tuple[ir.Node, ...]]:
    node = weight.producer()
    if node is None or node.domain != "" or not is_private(weight):
        return weight, (), ()
    stored = node.inputs[0]
    if not is_constant(stored):
        return weight, (), ()
    assert stored is not None
    if node.op_type == "Transpose":
        return stored, tuple(node.attributes.get_ints("perm", ())), (node,)
    if node.op_type == "Reshape" and is_constant(node.inputs[1]):
        return stored, (), (node,)
    return weight, (), ()


def _transposes(node: ir.Node, order: tuple[int, ...]) -> bool:
    return node.op_type == "Transpose" and node.domain == "" and tuple(node.attributes.get_ints("perm", ())) == order

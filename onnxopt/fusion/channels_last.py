"""Convolutions in the form that the layout pass writes: a Conv between two Transposes, the rest of the graph NHWC.

    x [N, H, W, C] -> Transpose -> Conv -> Transpose -> y [N, Ho, Wo, K]

A constant weight lies in the order that kernels read, and a Transpose or a Reshape turns it into Conv's own order:
[K, R, S, C / group] for most convolutions, [R, S, 1, K] for depthwise ones, [K, C] for 1x1 ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.window import Window

TO_NCHW = (0, 3, 1, 2)
TO_NHWC = (0, 2, 3, 1)
KRSC = (0, 3, 1, 2)  # [K, R, S, C / group] to Conv's [K, C / group, R, S]
RSK = (3, 2, 0, 1)  # [R, S, 1, K] to Conv's [K, 1, R, S]


@dataclasses.dataclass(frozen=True)
class Sandwich:
    """A Conv of rank 4 and the nodes that belong to it.

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


def sandwich(conv: ir.Node, shapes: Shapes) -> Sandwich | str:
    """The convolution around a Conv node in NHWC, or the reason why the Conv is in no such form."""
    before, after = conv.inputs[0], conv.outputs[0]
    if conv.op_type != "Conv" or conv.domain != "" or before is None or conv.inputs[1] is None:
        return f"{conv.op_type} is no Conv with two inputs"
    if len(shapes.dims(after) or ()) != 4:
        return "The Conv is not two-dimensional"
    turn = before.producer()
    if turn is None or not _transposes(turn, TO_NCHW) or not _is_private(before):
        return "The Conv's input is NCHW, or other nodes read it too"
    readers = list(after.uses())
    if len(readers) != 1 or after.is_graph_output() or not _transposes(readers[0].node, TO_NHWC):
        return "The Conv's result is NCHW, or other nodes read it too"
    back = readers[0].node
    x = turn.inputs[0]
    assert x is not None
    w, order, turned = _stored_weight(conv.inputs[1])
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    nodes = (*turned, turn, conv, back)
    return Sandwich(conv, nodes, _window(conv, shapes), x, w, order, bias, back.outputs[0])


def _window(conv: ir.Node, shapes: Shapes) -> Window | None:
    of = conv.attributes
    weight = conv.inputs[1]
    dims = (shapes.dims(weight) if weight is not None else None) or ()
    kernel = _pair(of.get_ints("kernel_shape", dims[2:]))
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


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is an initializer that callers cannot replace."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def _stored_weight(weight: ir.Value) -> tuple[ir.Value, tuple[int, ...], tuple[ir.Node, ...]]:
    node = weight.producer()
    if node is None or node.domain != "" or not _is_private(weight):
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


def _is_private(value: ir.Value) -> bool:
    return len(list(value.uses())) == 1 and not value.is_graph_output()

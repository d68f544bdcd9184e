"""1x1 convolutions of maps that a gate scales, as products by weights that it scales, one matrix a sample.

    y = Conv(x * g, w) + b    ->    y[n] = x[n] (w * g[n])^T + b        x [N, H, W, C], g [N, 1, 1, C], w [K, C]

A squeeze-excite's gate is then no pass over the map. What it scales is small where K is smaller than H * W. Either the
gate is bounded, as sigmoids are, or all weights are up to 1, as those of NAFNet, whose gate is any number: so no weight
overflows where neither the gate nor the map did. The product is written in NCHW between two Transposes, as convolutions
are, so that an execution provider cancels these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.costs.layout import numbers
from onnxopt.graph.layout.mark import mark
from onnxopt.graph.layout.orders import RANK, TO_NCHW, TO_NHWC, transposes
from onnxopt.graph.match import is_private
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.shapes.infer import Knowledge

_BOUNDED = frozenset({"Sigmoid", "HardSigmoid"})
_VIEWS = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Transpose"})
_MAX_GATE = 1.01  # of a scaled Clip; 1 / 6 is rounded
_MAX_WEIGHT = 1.0  # beside a gate of any size
_MAX_COLUMNS, _MIN_PIXELS = numbers().gated_columns  # scaled weights, of a scaled map


class _Gated(NamedTuple):
    """conv: between the Transposes turn and back. weight: [K, C]. columns: K. pixels: H and W."""

    conv: ir.Node
    turn: ir.Node
    back: ir.Node
    x: ir.Value
    gate: ir.Value
    weight: ir.Value
    columns: int
    channels: int
    pixels: tuple[int, int]


def candidates(graph: ir.Graph) -> list[ir.Node]:
    """1x1 convolutions in channels last, one group, of what a Mul computes alone for them."""
    return [node for node in graph if _multiplied(node) is not None]


def scale(graph: ir.Graph, convs: list[ir.Node], inferred: Knowledge) -> int:
    """Change those of `convs` where it saves time, in place; how many. Nodes without use remain."""
    rows = [gated for conv in convs if (gated := _gated(conv, inferred)) is not None]
    for gated in rows:
        _replace(graph, gated)
    return len(rows)


def _multiplied(conv: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node] | None:
    """The Transposes around such a convolution, and the Mul."""
    if conv.op_type != "Conv" or conv.domain != "" or conv.inputs[0] is None or not _is_plain(conv):
        return None
    turn, readers = conv.inputs[0].producer(), conv.outputs[0].consumers()
    if turn is None or not transposes(turn, TO_NCHW) or not is_private(conv.inputs[0]):
        return None
    if len(readers) != 1 or not is_private(conv.outputs[0]) or not transposes(readers[0], TO_NHWC):
        return None
    source = turn.inputs[0]
    mul = source.producer() if source is not None and is_private(source) else None
    return None if mul is None or mul.op_type != "Mul" or mul.domain != "" else (turn, readers[0], mul)


def _is_plain(conv: ir.Node) -> bool:
    of = conv.attributes
    window = of.get_ints("kernel_shape", (1, 1)), of.get_ints("strides", (1, 1))
    return all(tuple(v) == (1, 1) for v in window) and not any(of.get_ints("pads", ())) and of.get_int("group", 1) == 1


def _gated(conv: ir.Node, inferred: Knowledge) -> _Gated | None:
    around = _multiplied(conv)
    weight = _matrix(conv.inputs[1])
    if around is None or weight is None:
        return None
    turn, back, mul = around
    columns, channels = inferred.dims(weight) or (None, None)
    dims = inferred.dims(turn.inputs[0])
    if not isinstance(columns, int) or not isinstance(channels, int) or dims is None or len(dims) != RANK:
        return None
    _, height, width, last = dims
    if last != channels or not isinstance(height, int) or not isinstance(width, int):
        return None
    operands = [v for v in mul.inputs if v is not None]
    for x, gate in (operands, operands[::-1]):
        if inferred.dims(x) != dims or inferred.dims(gate) != (dims[0], 1, 1, channels):
            continue
        if _pays(columns, height * width) and (_is_bounded(gate) or _is_small(weight)):
            return _Gated(conv, turn, back, x, gate, weight, columns, channels, (height, width))
    return None


def _is_small(weight: ir.Value) -> bool:
    """Whether a product of any number with a weight is no larger than the number."""
    assert weight.const_value is not None
    return bool((np.abs(weight.const_value.numpy().astype(np.float32)) <= _MAX_WEIGHT).all())


def _pays(columns: int, pixels: int) -> bool:
    """Whether scaling [columns, C] weights of each sample takes less time than scaling its [pixels, C] map."""
    return _MIN_PIXELS * columns <= _MAX_COLUMNS * pixels


def _matrix(weight: ir.Value | None) -> ir.Value | None:
    """The constant [K, C] that a Reshape makes the weight of the convolution."""
    node = weight.producer() if weight is not None else None
    if node is None or node.op_type != "Reshape" or node.domain != "":
        return None
    stored = node.inputs[0]
    constant = stored is not None and stored.const_value is not None and not stored.is_graph_input()
    return stored if constant and stored is not None and len(stored.shape or ()) == 2 else None


def _is_bounded(gate: ir.Value) -> bool:
    """Whether views of a sigmoid are the gate, or of a Clip that a constant scales."""
    node = gate.producer()
    while node is not None and node.op_type in _VIEWS and node.domain == "" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.domain != "":
        return False
    if node.op_type in ("Mul", "Div"):
        clip = node.inputs[0].producer() if node.inputs[0] is not None else None
        factor = _scalar(node.inputs[1])
        if clip is None or clip.op_type != "Clip" or clip.domain != "" or len(clip.inputs) != 3 or not factor:
            return False
        ends = [_scalar(value) for value in clip.inputs[1:]]
        scaled = abs(factor) if node.op_type == "Mul" else 1 / abs(factor)
        return all(end is not None and abs(end) * scaled <= _MAX_GATE for end in ends)
    return node.op_type in _BOUNDED


def _scalar(value: ir.Value | None) -> float | None:
    """The constant of one element, None for other values."""
    if value is None or value.const_value is None or value.is_graph_input() or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(()))


def _replace(graph: ir.Graph, gated: _Gated) -> None:
    conv, (height, width), dtype = gated.conv, gated.pixels, gated.x.dtype
    new = NewNodes(graph, conv)
    weights = new.add("Mul", [gated.gate, gated.weight], dtype)  # [N, 1, K, C]
    gated.turn.replace_input_with(0, gated.x)
    flat = new.constant(np.array([0, 1, gated.channels, height * width], np.int64))
    planes = new.constant(np.array([0, gated.columns, height, width], np.int64))
    columns = new.add("Reshape", [gated.turn.outputs[0], flat], dtype)
    product = new.add("MatMul", [weights, columns], dtype)
    gated.back.replace_input_with(0, new.add("Reshape", [product, planes], dtype))
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    graph.remove(conv, safe=True)
    if bias is not None:
        _add(graph, gated.back, bias)


def _add(graph: ir.Graph, back: ir.Node, bias: ir.Value) -> None:
    """A bias behind the Transpose, in channels last."""
    y = back.outputs[0]
    node = ir.Node("", "Add", [y, bias], num_outputs=1)
    result = node.outputs[0]
    result.type, result.shape, name = y.type, y.shape, y.name
    mark(result)
    graph.insert_after(back, node)
    for use in list(y.uses()):
        if use.node is not node:
            use.node.replace_input_with(use.idx, result)
    for k, output in enumerate(graph.outputs):
        if output is y:
            graph.outputs[k] = result
            y.name, result.name = None, name

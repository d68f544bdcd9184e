"""Depthwise convolutions in the graph, and the 1x1 convolutions that widen what they read."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.fusion.channels_last import RSK, Sandwich, sandwich
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.layout.orders import RANKS
from onnxopt.graph.match import is_constant, only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import FLOATS
from onnxopt.program.depthwise import EXPANDED, MAX_EXPANDED, MAX_HELD, MAX_SIDE, Expansion


def core(node: ir.Node, shapes: Shapes) -> CoreMatch | str:
    """The depthwise convolution around a Conv, or the reason why no kernel of this kind can run it."""
    conv = convolution(node, shapes)
    if isinstance(conv, str):
        return conv
    dims = shapes.dims(conv.w)
    assert dims is not None and conv.window is not None
    return CoreMatch(
        nodes=conv.nodes,
        x=conv.x,
        y=conv.y,
        operands={"weight": conv.w, "bias": conv.bias},
        first=(conv.x, conv.w, conv.bias),
        fields={"channels": dims[3], "window": conv.window},
    )


def gated_core(match: CoreMatch, shapes: Shapes) -> CoreMatch | None:
    """The depthwise convolution with the Split of its result into halves of the channels, None where there is none."""
    split, dims = only_consumer(match.y), shapes.dims(match.y)
    if split is None or (split.domain, split.op_type) != ("", "Split") or dims is None or len(split.outputs) != 2:
        return None
    window = match.fields["window"]
    if split.attributes.get_int("axis", 0) not in (-1, len(dims) - 1) or math.prod(window.kernel) > MAX_HELD:
        return None
    first, half = split.outputs
    channels = match.fields["channels"] // 2
    if any(shapes.dims(v) != (*dims[:-1], channels) or v.is_graph_output() for v in (first, half)):
        return None
    fields = {**match.fields, "channels": channels}
    return dataclasses.replace(match, nodes=(*match.nodes, split), y=first, half=half, fields=fields)


def expanded_core(match: CoreMatch, wide: Sandwich, shapes: Shapes) -> CoreMatch:
    """The depthwise convolution with the 1x1 convolution whose result it, or its prologue, reads."""
    _, weight, bias = match.first
    return dataclasses.replace(
        match,
        nodes=(*match.nodes, *wide.nodes),
        first=(wide.x, weight, bias, wide.w, wide.bias),
        fields={**match.fields, "expansion": functools.partial(_expansion, wide, shapes)},
        entry=(wide.y, wide.x),
    )


def _expansion(wide: Sandwich, shapes: Shapes, inputs: Sequence[ir.Value]) -> Expansion:
    dims = shapes.dims(wide.w)
    assert dims is not None and isinstance(dims[1], int)
    return Expansion(inputs.index(wide.w), dims[1], None if wide.bias is None else inputs.index(wide.bias))


def has_groups_of_one(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a Conv has a filter of its own for each channel, in whatever layout."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    dims = (shapes.dims(weight) if weight is not None else None) or ()
    group = node.attributes.get_int("group", 1)
    return len(dims) > 1 and group > 1 and dims[0] == group and dims[1] == 1


def convolution(node: ir.Node, shapes: Shapes) -> Sandwich | str:
    """The depthwise convolution around a Conv, or the reason why no kernel of this kind can run it."""
    match = sandwich(node, shapes)
    if isinstance(match, str):
        return match
    dims, x = shapes.dims(match.w), shapes.dims(match.x)
    if match.weight_order != RSK or not is_constant(match.w) or dims is None or len(dims) != 4:
        return "The weight is no constant in the order of its kernel's rows"
    channels, dtype = dims[3], shapes.dtype(match.x)
    if match.group != channels or dims[2] != 1 or x is None or len(x) not in RANKS or x[-1] != channels:
        return "The convolution has no filter of its own for each channel"
    if dtype is None or dtype.name not in FLOATS or any(shapes.dtype(v) != dtype for v in (match.w, match.y)):
        return f"The dtype of `{match.x.name}` is not one of {', '.join(FLOATS)}"
    if match.bias is not None and (shapes.dims(match.bias) != (channels,) or shapes.dtype(match.bias) != dtype):
        return f"The bias `{match.bias.name}` is not one {dtype.name} a channel"
    window = match.window
    if window is None:
        return "The size of the convolution's kernel is unknown"
    if window.depth is not None:
        return "The convolution goes over the depth of a volume"
    if max(*window.kernel, *window.strides, *window.dilations) > MAX_SIDE or min(window.pads) < 0:
        return f"The convolution's kernel, stride or dilation is above {MAX_SIDE}, or a padding is negative"
    if window.auto_pad.startswith("SAME") and max(window.dilations) > 1:
        return f"ONNX Runtime refuses dilations beside auto_pad = {window.auto_pad}"
    return match


def expansion(node: ir.Node, shapes: Shapes) -> Sandwich | str:
    """The 1x1 convolution around a Conv that widens what a depthwise one reads, or the reason why no kernel of this
    kind can run it."""
    match = sandwich(node, shapes)
    if isinstance(match, str):
        return match
    dims, dtype, x = shapes.dims(match.w), shapes.dtype(match.x), shapes.dims(match.x)
    is_pointwise = match.window is not None and match.window.is_pointwise and match.group == 1
    if dims is None or len(dims) != 2 or not is_pointwise or not is_constant(match.w) or match.is_transposed:
        return "The Conv is no 1x1 convolution with a constant matrix, without strides, padding and groups"
    wide, narrow = dims
    if not isinstance(wide, int) or not isinstance(narrow, int) or wide % 8 or narrow % 8 or narrow > MAX_EXPANDED:
        return f"{narrow} and {wide} channels are no multiples of 8 up to {MAX_EXPANDED} and any number"
    if x is None or len(x) != 4 or x[3] != narrow:
        return f"`{match.x.name}` has not {narrow} channels"
    if dtype is None or dtype.name not in EXPANDED or any(shapes.dtype(v) != dtype for v in (match.w, match.y)):
        return f"The dtype of `{match.x.name}` is not one of {', '.join(EXPANDED)}"
    if match.bias is not None and (shapes.dims(match.bias) != (wide,) or shapes.dtype(match.bias) != dtype):
        return f"The bias `{match.bias.name}` is not one {dtype.name} a channel"
    return match

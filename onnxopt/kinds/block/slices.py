"""Splits and Slices of channels, and Concats of channels, in NHWC."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes.shapes import Shapes

_RANK = 4
_SINCE = 13  # the opset from which on Split and Slice take their bounds as inputs


@dataclasses.dataclass(frozen=True)
class Channels:
    """Channels first to first + count - 1 of `whole`. node: the Split or Slice that takes them; None for all of it."""

    whole: ir.Value
    first: int
    count: int
    node: ir.Node | None = None


def channels(value: ir.Value, shapes: Shapes) -> int | None:
    """The last of the four dims of a value, None where it is not a number or there are not four."""
    dims = shapes.dims(value)
    return dims[-1] if dims is not None and len(dims) == _RANK and isinstance(dims[-1], int) else None


def source_of_channels(value: ir.Value, shapes: Shapes, opset: int) -> Channels | None:
    """The channels that a value is: of another one by way of a Split or a Slice, or all of its own.

    None where its channels are not known.
    """
    node, count = value.producer(), channels(value, shapes)
    if count is None:
        return None
    if node is None or node.domain != "" or opset < _SINCE or node.op_type not in ("Split", "Slice"):
        return Channels(value, 0, count)
    whole = node.inputs[0]
    width = channels(whole, shapes) if whole is not None else None
    first = None
    if whole is not None and width is not None:
        first = _split_channels(node, value, shapes) if node.op_type == "Split" else _slice_channels(node, width)
    if whole is None or first is None:
        return Channels(value, 0, count)
    return Channels(whole, first, count, node)


def is_concat(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node joins the channels of at least two values."""
    if node.op_type != "Concat" or node.domain != "" or len(node.inputs) < 2:
        return False
    have_channels = all(v is not None and channels(v, shapes) is not None for v in (*node.inputs, *node.outputs))
    return have_channels and node.attributes.get_int("axis", 0) % _RANK == _RANK - 1


def _split_channels(node: ir.Node, value: ir.Value, shapes: Shapes) -> int | None:
    if node.attributes.get_int("axis", 0) % _RANK != _RANK - 1:
        return None
    first = 0
    for output in node.outputs:
        if output is value:
            return first
        count = channels(output, shapes)
        if count is None:
            return None
        first += count
    return None


def _slice_channels(node: ir.Node, width: int) -> int | None:
    """The first channel of a Slice that takes neighbouring channels and all of the other dims."""
    bounds = [_numbers(node, k) for k in range(1, 5)]
    starts, ends, axes, steps = bounds
    if starts is None or ends is None or any(b is None and k < len(node.inputs) for k, b in enumerate(bounds, 1)):
        return None
    if len(starts) != 1 or (axes or [0])[0] % _RANK != _RANK - 1 or (steps or [1]) != [1]:
        return None
    start = starts[0]
    return min(max(start + width if start < 0 else start, 0), width)


def _numbers(node: ir.Node, k: int) -> list[int] | None:
    """A parameter that is a constant; None where it is left out or computed."""
    value = node.inputs[k] if k < len(node.inputs) else None
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return [int(n) for n in value.const_value.numpy().flat]

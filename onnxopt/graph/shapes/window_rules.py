"""Shape rules of operators over height and width, whose sizes may be symbols: windows, Resize, Pad, DepthToSpace.

A rule takes the node and what is known of values. It returns the dims of the node's one output, or None where it knows
no more than onnx's rule for that operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.contents import Contents
from onnxopt.graph.shapes.dims import Dim, Dims, Unknowns, floor, not_negative, product, sign, simplest, step_count


class InferredShapes(Protocol):
    """What a rule may ask about the values inferred so far."""

    unknowns: Unknowns

    def dims(self, value: ir.Value | None) -> Dims | None: ...

    def contents(self, value: ir.Value | None) -> Contents | None: ...


WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool"})  # no run has a window that does not fit
Rule = Callable[[ir.Node, InferredShapes], Dims | None]


def _convolution(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, weight = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    if source is None or weight is None:
        return None
    sizes = _slid(node, source[2:], weight[2:])
    return None if sizes is None else (source[0], weight[0], *sizes)


def _pool(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, kernel = inferred.dims(node.inputs[0]), node.attributes.get_ints("kernel_shape", ())
    if source is None or len(kernel) != len(source) - 2:
        return None
    strides = node.attributes.get_ints("strides", (1,) * len(kernel))
    if node.attributes.get_int("ceil_mode", 0) and any(stride != 1 for stride in strides):
        rounded_up = _slid_beyond(node, source[2:], kernel, inferred.unknowns)
        return None if rounded_up is None else (*source[:2], *rounded_up)
    if all(isinstance(dim, int) for dim in source[2:]):
        return None
    sizes = _slid(node, source[2:], kernel)
    return None if sizes is None else (*source[:2], *sizes)


def _slid_beyond(
    node: ir.Node, sizes: Sequence[Dim], kernel: Sequence[int], unknowns: Unknowns
) -> list[Dim] | None:  # fmt: skip
    """How many windows a pool with ceil_mode has along axes of known sizes: the last one may end after the padding.

    Unknown where it would begin in the padding: ONNX Runtime runs no such window, but its inference counts it, and
    refuses a model that states another number.
    """
    count, of = len(sizes), node.attributes
    if of.get_string("auto_pad", "NOTSET") != "NOTSET" or not all(isinstance(size, int) for size in sizes):
        return None
    pads = of.get_ints("pads", (0,) * 2 * count)
    strides, dilations = (of.get_ints(name, (1,) * count) for name in ("strides", "dilations"))
    windows: list[Dim] = []
    for k, size in enumerate(map(int, sizes)):
        room = size + pads[k] + pads[count + k] - dilations[k] * (kernel[k] - 1) - 1
        if room < 0 or min(*strides, *dilations) < 1:
            return None
        number = -(-room // strides[k]) + 1
        begins_in_padding = (number - 1) * strides[k] >= size + pads[k]
        windows.append(unknowns.dim() if begins_in_padding else number)
    return windows


def _slid(node: ir.Node, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Dim] | None:
    """How many windows fit along each axis."""
    count, auto_pad = len(sizes), node.attributes.get_string("auto_pad", "NOTSET")
    pads = node.attributes.get_ints("pads", (0,) * 2 * count) if auto_pad == "NOTSET" else (0,) * 2 * count
    strides, dilations = (node.attributes.get_ints(name, (1,) * count) for name in ("strides", "dilations"))
    if min(*strides, *dilations) < 1:
        return None  # a runtime refuses the node
    if auto_pad.startswith("SAME"):
        return [step_count(size, strides[k]) for k, size in enumerate(sizes)]
    windows: list[Dim] = []
    for k, size in enumerate(sizes):
        room = simplest(size + pads[k] + pads[count + k] - dilations[k] * (kernel[k] - 1) - 1)
        if sign(room) == -1:
            return None  # the window is larger than what it slides over
        windows.append(simplest(floor(sympy.sympify(room) / strides[k]) + 1))
    return windows


def _transposed(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """ConvTranspose with explicit padding."""
    source, weight = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    of = node.attributes
    if source is None or weight is None or "output_shape" in of or of.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    count, channels = len(source) - 2, product((weight[1], of.get_int("group", 1)))
    pads, padding = of.get_ints("pads", (0,) * 2 * count), of.get_ints("output_padding", (0,) * count)
    strides, dilations = (of.get_ints(name, (1,) * count) for name in ("strides", "dilations"))
    if min(*strides, *dilations) < 1:
        return None
    sizes: list[Dim] = []
    for k in range(count):
        reach = dilations[k] * (weight[2 + k] - 1) + 1 + padding[k] - pads[k] - pads[count + k]
        sizes.append(simplest(strides[k] * (source[2 + k] - 1) + reach))
    return (source[0], channels, *sizes) if all(map(not_negative, sizes)) else None


def _pad(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, pads = inferred.dims(node.inputs[0]), inferred.contents(node.inputs[1])
    axes = inferred.contents(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    has_value = len(node.inputs) > 3 and node.inputs[3] is not None
    if source is None or pads is None or (has_value and axes is None):
        return None
    which = [int(axis) % len(source) for axis in axes.flat] if axes is not None else list(range(len(source)))
    dims = list(source)
    for k, axis in enumerate(which):
        size = simplest(dims[axis] + pads.flat[k] + pads.flat[len(which) + k])
        dims[axis] = size if not_negative(size) else inferred.unknowns.dim()
    return tuple(dims)


def _resize(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """Resize by constant scales, or to known sizes. A symbolic dim times a factor that is not whole is unknown."""
    source = inferred.dims(node.inputs[0])
    scales, sizes = (node.inputs[k] if k < len(node.inputs) else None for k in (2, 3))
    if source is None:
        return None
    axes = node.attributes.get_ints("axes", tuple(range(len(source))))
    dims = list(source)
    wanted = inferred.contents(sizes)
    if wanted is not None and node.attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch":
        for axis, size in zip(axes, wanted.flat, strict=True):
            dims[axis % len(source)] = size if sign(size) == 1 else inferred.unknowns.dim()
        return tuple(dims)
    if sizes is not None or scales is None or scales.const_value is None or scales.is_graph_input():
        return None
    factors = scales.const_value.numpy().reshape(-1)
    if factors.size != len(axes) or not np.all(np.isfinite(factors) & (factors > 0)):
        return None
    for axis, factor in zip(axes, factors, strict=True):
        dim = source[axis % len(source)]
        if isinstance(dim, int):
            dims[axis % len(source)] = int(np.floor(np.float32(dim) * factor))
        elif float(factor).is_integer():
            dims[axis % len(source)] = product((dim, int(factor)))
        else:
            dims[axis % len(source)] = inferred.unknowns.dim()
    return tuple(dims)


def _depth_to_space(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, block = inferred.dims(node.inputs[0]), node.attributes.get_int("blocksize", 0)
    if source is None or len(source) != 4 or not isinstance(source[1], int) or block is None or block < 1:
        return None
    return (source[0], source[1] // (block * block), product((source[2], block)), product((source[3], block)))


RULES: dict[str, Rule] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Pad": _pad,
    "Resize": _resize,
    "DepthToSpace": _depth_to_space,
}

"""Keys and values that a graph stores as codes: QuantizeLinear in front of the cache, DequantizeLinear behind it.

    present = Concat(past, QuantizeLinear(fresh, scale))    keys = DequantizeLinear(present, scale)

Both nodes must have the same scale, and no zero point but 0. A Cast may stand on the other side of either, where the
scale is float32 and the attention is not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import dtype_of
from onnxopt.graph.match import constant

_RANK = 4  # of keys and values
_HEADS, _ELEMENTS = 1, 3  # axes of (B, groups, T, H)


class Coding(NamedTuple):
    """scale: of the codes. per: of PER in program/attention.py, what has a scale of its own."""

    scale: ir.Value
    per: str


def quantized(
    value: ir.Value | None, heads_axis: int = _HEADS
) -> tuple[ir.Value | None, tuple[ir.Node, ...], Coding | None]:
    """What a QuantizeLinear reads, the nodes from there on, and its coding; the value itself where there is none.

    heads_axis: where heads lie in the value.
    """
    node = value.producer() if value is not None else None
    if node is None or (node.domain, node.op_type) != ("", "QuantizeLinear"):
        return value, (), None
    coded = _coding(node, heads_axis)
    if coded is None:
        return value, (), None
    source = node.inputs[0]
    nodes: tuple[ir.Node, ...] = (node,)
    cast = source.producer() if source is not None else None
    if cast is not None and (cast.domain, cast.op_type) == ("", "Cast") and _is_float32(coded.scale):
        source, nodes = cast.inputs[0], (cast, node)
    return source, nodes, coded


def dequantized(value: ir.Value | None) -> tuple[ir.Value | None, ir.Node | None]:
    """The codes that a value stands for, and their DequantizeLinear."""
    node = value.producer() if value is not None else None
    if node is None or (node.domain, node.op_type) != ("", "DequantizeLinear"):
        return None, None
    return node.inputs[0], node


def coding(dequantize: ir.Node, new: Coding | None) -> Coding | None:
    """The coding of a DequantizeLinear of keys or values, where new tokens are coded so too."""
    coded = _coding(dequantize, _HEADS)
    if coded is None or new is None or coded.per != new.per or not _are_equal(coded.scale, new.scale):
        return None
    return coded


def _coding(node: ir.Node, heads_axis: int) -> Coding | None:
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    usual = {"block_size": (0,), "saturate": (1,)}
    if scale is None or any(node.attributes.get_int(name, good[0]) not in good for name, good in usual.items()):
        return None
    if zero is not None and ((zeros := constant(zero)) is None or np.any(zeros.astype(np.float32))):
        return None
    if scale.shape is None or len(scale.shape) > 1:
        return None
    if len(scale.shape) == 0 or scale.shape[0] == 1:
        return Coding(scale, "tensor")
    axis = node.attributes.get_int("axis", 1) or 0
    per = {heads_axis: "head", _ELEMENTS: "element"}.get(axis + _RANK * (axis < 0))
    return None if per is None else Coding(scale, per)


def _is_float32(scale: ir.Value) -> bool:
    return dtype_of(scale) == ir.DataType.FLOAT


def _are_equal(one: ir.Value, other: ir.Value) -> bool:
    first, second = constant(one), constant(other)
    return one is other or (first is not None and second is not None and np.array_equal(first, second))

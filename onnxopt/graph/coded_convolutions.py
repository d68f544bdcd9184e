"""Convolutions whose operands are codes, in any layout: Conv(DQ(x), DQ(w), bias or DQ(bias)), and which kernels take.

Scales and zero points are of the whole tensor, scales of a weight also of each filter. Weights have the zero point 0.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import dtype_of, has_attributes, is_dequantize, is_plain, scalar
from onnxopt.graph.match import constant, is_constant, operand

_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_MAX_DEPTH = 1 << 16  # codes of a filter
MULTIPLE = 16  # of channels: cuDNN's kernels load 16 bytes
_SAME_SCALE = {ir.DataType.FLOAT: 1e-5, ir.DataType.FLOAT16: 1e-3}  # relative: products of scales are rounded


@dataclasses.dataclass(frozen=True)
class Operands:
    """x, w, bias: the DQs of the Conv's operands; no DQ of a bias of floats. scale: of x; where the weight has one
    scale, times that. zero: of x."""

    x: ir.Node
    w: ir.Node
    bias: ir.Node | None
    scale: float
    zero: int

    @property
    def scales(self) -> ir.Value | None:
        """The weight's scales [K], where there is one for each filter."""
        scale = self.w.inputs[1]
        return None if scale is None or scale.const_value is None or scale.const_value.size == 1 else scale


def operands(conv: ir.Node, x: ir.Value | None, w: ir.Value | None) -> Operands | str:
    """What a Conv reads, or why no kernel multiplies its codes. x: its operand, in any layout. w: the constant codes of
    its weight, in any layout. The dims of the Conv's own operands must be known."""
    of_x, of_w = (None if v is None else v.producer() for v in (x, conv.inputs[1]))
    if of_x is None or not is_dequantize(of_x) or of_w is None or not is_dequantize(of_w) or conv.op_type != "Conv":
        return "The Conv does not read codes of its input and of its weight"
    if not is_plain(of_x) or dtype_of(of_x.inputs[0]) not in _CODES:
        return "The codes of the Conv's input are not of 8 bits with one scale"
    if not is_constant(w) or dtype_of(w) != ir.DataType.INT8 or not _is_zero(of_w) or has_attributes(of_w):
        return "The codes of the Conv's weight are no constant of int8 with the zero point 0"
    dims = conv.inputs[1].shape if conv.inputs[1] is not None else None  # type: ignore[union-attr]
    if dims is None or len(dims) != 4 or conv.attributes.get_int("group", 1) != 1:
        return "The Conv of codes has groups, or is not one of images"
    channels = [d for d in dims[:2] if isinstance(d, int)]
    if len(channels) != 2 or any(d == 0 or d % MULTIPLE for d in channels):
        return f"The channels of the Conv of codes are no multiples of {MULTIPLE}"
    if w is not None and w.const_value is not None and w.const_value.size > _MAX_DEPTH * channels[0]:
        return "The sums of the Conv of codes are larger than int32 holds"
    steps, scales = constant(of_x.inputs[1]), constant(of_w.inputs[1])
    if steps is None or scales is None or not _are_steps(steps) or not _are_steps(scales):
        return "The scales of the Conv's codes are no constants above 0"
    by_filter = scales.ndim == 1 and scales.size == channels[0] and of_w.attributes.get_int("axis", 1) == 0
    if scales.size != 1 and not by_filter:
        return "The weight's scales are not of its filters"
    step = float(steps.reshape(-1)[0])
    of_bias = _bias(conv, channels[0], np.float64(step) * scales.astype(np.float64).reshape(-1))
    if isinstance(of_bias, str):
        return of_bias
    point = scalar(operand(of_x, 2))
    return Operands(
        of_x, of_w, of_bias, step * (float(scales.reshape(-1)[0]) if scales.size == 1 else 1.0),
        0 if point is None else int(point.reshape(())),
    )  # fmt: skip


def _bias(conv: ir.Node, filters: int, scales: np.ndarray) -> ir.Node | str | None:
    """The DQ of a bias of int32, None for a bias of floats or none."""
    bias = operand(conv, 2)
    if bias is None or is_constant(bias):
        return None
    node = bias.producer()
    if node is None or not is_dequantize(node) or not is_constant(node.inputs[0]) or not _is_zero(node):
        return "The bias of the Conv of codes is no constant"
    codes, steps = node.inputs[0], constant(node.inputs[1])
    if dtype_of(codes) != ir.DataType.INT32 or steps is None or steps.size not in (1, filters):
        return "The codes of the Conv's bias are not int32"
    if codes is None or codes.const_value is None or codes.const_value.shape.numpy() != (filters,):
        return "The bias of the Conv of codes has not one number a filter"
    tolerance = _SAME_SCALE.get(dtype_of(node.inputs[1]) or ir.DataType.UNDEFINED, 0.0)
    if not np.allclose(steps.astype(np.float64).reshape(-1), scales, rtol=tolerance, atol=0):
        return "The bias of the Conv of codes has other scales than its products"
    return node


def _is_zero(node: ir.Node) -> bool:
    """Whether the zero points of a DQ are 0."""
    zeros = operand(node, 2)
    array = None if zeros is None else constant(zeros)
    return zeros is None or (array is not None and not array.astype(np.float32).any())


def _are_steps(scales: np.ndarray) -> bool:
    return bool((np.isfinite(scales.astype(np.float64)) & (scales > 0)).all())

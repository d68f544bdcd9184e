"""Codes around a convolution in NHWC, as DequantizeLinear (DQ) and QuantizeLinear (Q) write them.

DQ(x) -> Transpose -> Conv with DQ(w), DQ(bias) -> Transpose [-> Q -> DQ] -> Add DQ(residual) -> Relu -> Q
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.fusion.channels_last import Sandwich
from onnxopt.graph import coded_convolutions
from onnxopt.graph.codes import dtype_of, is_dequantize, is_plain, is_quantize, scalar
from onnxopt.graph.match import is_private, operand
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.convolution import CODES, CodeScale

SHAPE_UNKNOWN = (
    "cuDNN compiles its kernel with {} for every shape, which takes half a second; the shape is not known yet, and no"
    " usual one was stated (`--shape`)"
)
TITLE = "a convolution of codes"


def operands(match: Sandwich) -> coded_convolutions.Operands | str | None:
    """The DQs of a convolution's operands, or why no kernel multiplies their codes. None for a weight of no codes."""
    weight = match.conv.inputs[1]
    if weight is None or not is_dequantize(weight.producer()):
        return None
    result = coded_convolutions.operands(match.conv, match.x, match.w)
    if isinstance(result, str):
        return result
    if not all(is_private(node.outputs[0]) for node in (result.x, result.w, result.bias) if node is not None):
        return "Other nodes read what the codes of the Conv's operands stand for"
    return result


def why_not(conv: ir.Node, shapes: Shapes) -> str:
    """Why no kernel multiplies the codes of a Conv in NCHW, "" where some does, or the weight has no codes."""
    weight = operand(conv, 1)
    dequantize = None if weight is None else weight.producer()
    if dequantize is None or not is_dequantize(dequantize):
        return ""
    reason = coded_convolutions.operands(conv, conv.inputs[0], dequantize.inputs[0])
    if isinstance(reason, str):
        return reason
    known = all(shapes.expected.of(dim) is not None for dim in shapes.dims(conv.inputs[0]) or (None,))  # type: ignore[arg-type]
    return "" if known else SHAPE_UNKNOWN.format(TITLE)


def scale_of(node: ir.Node) -> CodeScale | None:
    """What codes of 8 bits stand for that a Q writes or a DQ reads; None for other ones, and for scales of an axis."""
    dtype, scale = dtype_of_codes(node), scalar(operand(node, 1))
    zero = operand(node, 2)
    point = None if zero is None else scalar(zero)
    if not is_plain(node) or dtype not in CODES or scale is None or (zero is not None and point is None):
        return None
    code_scale = CodeScale(float(scale.reshape(())), 0.0 if point is None else float(point.reshape(())))
    return code_scale if code_scale.problem() is None else None


def dtype_of_codes(node: ir.Node) -> str:
    """The dtype of the codes that a Q writes or a DQ reads, "" where it is not known."""
    if not is_quantize(node):
        return _name(dtype_of(operand(node, 0)))
    zero = operand(node, 2)
    return "uint8" if zero is None else _name(dtype_of(zero))


def _name(dtype: ir.DataType | None) -> str:
    return "" if dtype is None else dtype.name.lower()

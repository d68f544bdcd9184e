"""Codes of 8 bits that an attention's results become at once, in the kernel that attends.

Q(attention)                             codes that are 8-bit floats
Cast(DQ(Q(attention), 1, z)) to float16  codes of integers minus their zero point, which products read
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import dtype_of, is_dequantize, is_plain, is_quantize, scalar
from onnxopt.graph.match import constant, only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.attention import Attention
from onnxopt.program.flash_attention import FLOAT8, AttentionCodes

_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)


def with_codes(match: Attention, shapes: Shapes) -> Attention:
    """An attention with what makes codes of its results, itself where that is nothing or more."""
    quantize = only_consumer(match.output)
    if quantize is None or not is_quantize(quantize) or quantize.inputs[0] is not match.output:
        return match
    step = constant(quantize.inputs[1]) if is_plain(quantize) else None
    if step is None:
        return match
    codes = quantize.outputs[0]
    dtype = shapes.ir_dtype(codes)
    tail: tuple[ir.Node, ...] = (quantize,)
    rule, stored = AttentionCodes(float(step.reshape(()))), FLOAT8
    if dtype in _INTEGERS:
        widened = _widened(codes)
        if widened is None:
            return match
        tail, info = (quantize, *widened), np.iinfo(dtype.numpy())
        zero = _zero(quantize)
        rule, stored = AttentionCodes(rule.step, float(info.min - zero), float(info.max - zero)), "float16"
    elif dtype != ir.DataType.FLOAT8E4M3FN:
        return match
    meaning = dataclasses.replace(match.meaning, outputs=(stored,), codes=rule)
    try:
        meaning.verify()
    except ValueError:
        return match
    nodes = (*match.nodes, *tail)
    return dataclasses.replace(match, nodes=nodes, output=tail[-1].outputs[0], meaning=meaning)


def attending(node: ir.Node) -> ir.Node:
    """The node that ends the attention of a region, of whose nodes this is the last."""
    last: ir.Node | None = node
    for is_next in (_is_cast, is_dequantize, is_quantize):
        if last is not None and is_next(last) and last.inputs[0] is not None:
            last = last.inputs[0].producer()
    return node if last is None else last


def _widened(codes: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """The DQ by 1 and the Cast to float16 that alone read codes."""
    dequantize = only_consumer(codes)
    if dequantize is None or not is_dequantize(dequantize) or not is_plain(dequantize):
        return None
    step, quantize = scalar(dequantize.inputs[1]), codes.producer()
    cast = only_consumer(dequantize.outputs[0])
    if cast is None or not _is_cast(cast) or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT16:
        return None
    same = quantize is not None and _zero(quantize) == _zero(dequantize)
    return (dequantize, cast) if same and step is not None and float(step.reshape(())) == 1.0 else None


def _is_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.domain == ""


def _zero(node: ir.Node) -> int:
    point = scalar(node.inputs[2]) if len(node.inputs) > 2 else None
    return 0 if point is None or dtype_of(node.inputs[2]) not in _INTEGERS else int(point.reshape(()))

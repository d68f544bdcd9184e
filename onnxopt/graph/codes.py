"""QuantizeLinear (Q) and DequantizeLinear (DQ): their constants, and which of them a pass may move or take apart."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import constant

DOMAINS = ("", "com.microsoft")
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def is_quantize(node: ir.Node | None) -> bool:
    """Whether a node is a Q."""
    return node is not None and node.op_type == QUANTIZE and node.domain in DOMAINS


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether a node is a DQ."""
    return node is not None and node.op_type == DEQUANTIZE and node.domain in DOMAINS


def is_plain(node: ir.Node) -> bool:
    """Whether a Q or DQ has one constant scale and zero point for the whole tensor, and no attribute that matters."""
    if node.domain not in DOMAINS or has_attributes(node):
        return False
    constants = [scalar(v) for v in node.inputs[1:] if v is not None]
    return bool(constants) and all(c is not None and c.size == 1 and c.ndim < 2 for c in constants)


def has_attributes(node: ir.Node) -> bool:
    """Whether a Q or DQ has an attribute besides its axis, and what float8 does beyond its range."""
    return any(a.value for name, a in node.attributes.items() if name not in ("axis", "saturate"))


def scalar(value: ir.Value | None) -> np.ndarray | None:
    """The constant of at most one element, None for other values."""
    if value is None or value.const_value is None or value.const_value.size > 1:
        return None
    return constant(value)


def dtype_of(value: ir.Value | None) -> ir.DataType | None:
    """The dtype of a value, None where it is not known."""
    if value is None:
        return None
    return value.const_value.dtype if value.const_value is not None else value.dtype

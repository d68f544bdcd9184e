"""The rows of QuantizeLinear and DequantizeLinear in the operator table (program/operators/table.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.program.dtypes import DTYPES, FLOAT8, to_ir
from onnxopt.program.expressions import Expr
from onnxopt.program.operators.elementwise import Call, Operand, Operator
from onnxopt.program.operators.result_dtypes import Attributes, attribute_dtype

_SCALED = frozenset({"float32", "float16", "bfloat16"})
_EIGHT_BITS = frozenset({"int8", "uint8"})  # whose codes, and the differences of two, float16 holds exactly
_CODES = _EIGHT_BITS | {"int16", "uint16"}
_LARGEST_E4M3 = 448.0


def quantization(domain: str, since: int) -> tuple[Operator, Operator]:
    """QuantizeLinear and DequantizeLinear of ONNX, and of com.microsoft, which had 16 bits first and has no float8.

    exact: x is rounded to its storage dtype, as the unfused operator would see it.
    """
    scale = Operand(_SCALED, scalar=True, along_axis=True)
    codes = _CODES if domain else _CODES | FLOAT8
    zero_points = Operand(codes, optional=True, scalar=True, along_axis=True)
    sums = codes | {"int32"}
    return (
        Operator(
            "QuantizeLinear", since, (2, 3), _SCALED, _quantize, domain=domain, result=_code_dtype,
            operands={1: scale, 2: zero_points}, dtypes_with=_unless_blocked(_SCALED), exact=True, samples=(0.1, 4.0),
            reference=_codes_of,
        ),
        Operator(
            "DequantizeLinear", since, (2, 3), sums, _dequantize, domain=domain, result=_scale_dtype,
            operands={1: scale, 2: Operand(optional=True, scalar=True, along_axis=True)},
            dtypes_with=_unless_blocked(sums), samples=(0.1, 4.0), reference=_numbers_of,
        ),
    )  # fmt: skip


def _quantize(c: Call) -> Expr:
    """Round x / scale half to even, add the zero point, saturate. NaN becomes the lowest code, as in ONNX Runtime.

    8-bit floats keep NaN, and have no zero point but 0.
    """
    x, scale = (arg.cast("float32") for arg in c.args[:2])
    if c.result in FLOAT8:
        return (x / scale).narrow(c.result)
    zero = c.args[2] if len(c.args) > 2 else None
    codes = np.iinfo(c.result)
    low, high = float(codes.min), float(codes.max)
    y = (x / scale).round()
    if zero is not None and zero.constant != 0:
        y = y + zero.cast("float32")
    elif low < 0:
        y = y + 0.0  # no code is -0
    return (y > low).where(y.min(high), low).as_code(DTYPES[c.result].compute)


def _dequantize(c: Call) -> Expr:
    """(x - zero point) * scale, in float32; the difference of codes of up to 16 bits is exact there."""
    x, scale = c.args[:2]
    zero = c.args[2] if len(c.args) > 2 and c.operand not in FLOAT8 else None
    if zero is not None and zero.constant != 0:
        x = x - zero if c.operand == "int32" else x.cast("float32") - zero.cast("float32")
    x = x.cast("float32")
    if scale.constant != 1.0:
        return x * scale.cast("float32")
    return dataclasses.replace(x, exact_in="float16") if c.operand in _EIGHT_BITS else x


def _code_dtype(operands: Sequence[ir.DataType | None], attributes: Attributes) -> ir.DataType | None:
    """QuantizeLinear: the dtype that the attribute names, or that of the zero point, or uint8."""
    if attributes.get("output_dtype"):
        return attribute_dtype("output_dtype")(operands, attributes)
    return operands[2] if len(operands) > 2 else to_ir("uint8")


def _scale_dtype(operands: Sequence[ir.DataType | None], attributes: Attributes) -> ir.DataType | None:
    """DequantizeLinear: the dtype that the attribute names, or that of the scale."""
    return attribute_dtype("output_dtype")(operands, attributes) if attributes.get("output_dtype") else operands[1]


def _unless_blocked(dtypes: frozenset[str]) -> Callable[[Attributes], frozenset[str]]:
    """These dtypes, where scales are of the whole tensor or of an axis, x / scale is float32, and codes saturate."""
    usual = {"block_size": (0,), "precision": (0, 1), "saturate": (1,)}
    plain = lambda attributes: all(attributes.get(name, of[-1]) in of for name, of in usual.items())  # noqa: E731
    return lambda attributes: dtypes if plain(attributes) else frozenset()


def _codes_of(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, **_: Any) -> np.ndarray:
    if zero.dtype == to_ir("float8e4m3fn").numpy():
        return np.clip(x / scale, -_LARGEST_E4M3, _LARGEST_E4M3).astype(zero.dtype)
    info = np.iinfo(zero.dtype)
    return np.clip(np.rint(x / scale) + zero, info.min, info.max)


def _numbers_of(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, **_: Any) -> np.ndarray:
    integers = x.dtype.kind in "iu"
    numbers: np.ndarray = (x.astype(np.int64) - zero.astype(np.int64) if integers else x.astype(np.float64)) * scale
    return numbers

"""Storage and compute dtypes: their names (ONNX's names in lower case), their sizes, and sets of them.

A tensor in memory has a storage dtype. A kernel computes in a compute dtype: float32 for float16, bfloat16 and
float8e4m3fn, and the storage dtype itself for all others. 8-bit floats are codes, and no operands of arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools

import onnx_ir as ir


@dataclasses.dataclass(frozen=True)
class Dtype:
    """One storage dtype.

    name: ONNX's name in lower case, but "float32" for FLOAT and "float64" for DOUBLE. size: bytes an element.
    compute: name of the dtype that kernels compute in. cuda: the type in cuda_kernels/.
    """

    name: str
    size: int
    compute: str
    cuda: str
    kind: str  # "float", "signed", "unsigned", "bool" or "float8"


_ROWS = (
    Dtype("float16", 2, "float32", "float16", "float"),
    Dtype("bfloat16", 2, "float32", "bfloat16", "float"),
    Dtype("float32", 4, "float32", "float", "float"),
    Dtype("float64", 8, "float64", "double", "float"),
    Dtype("int8", 1, "int8", "int8_t", "signed"),
    Dtype("int16", 2, "int16", "int16_t", "signed"),
    Dtype("int32", 4, "int32", "int32_t", "signed"),
    Dtype("int64", 8, "int64", "int64_t", "signed"),
    Dtype("uint8", 1, "uint8", "uint8_t", "unsigned"),
    Dtype("uint16", 2, "uint16", "uint16_t", "unsigned"),
    Dtype("uint32", 4, "uint32", "uint32_t", "unsigned"),
    Dtype("uint64", 8, "uint64", "uint64_t", "unsigned"),
    Dtype("bool", 1, "bool", "bool", "bool"),
    Dtype("float8e4m3fn", 1, "float32", "float8e4m3fn", "float8"),
)

DTYPES: dict[str, Dtype] = {row.name: row for row in _ROWS}
FLOATS = frozenset(row.name for row in _ROWS if row.kind == "float")
SIGNED = frozenset(row.name for row in _ROWS if row.kind == "signed")
UNSIGNED = frozenset(row.name for row in _ROWS if row.kind == "unsigned")
INTEGERS = SIGNED | UNSIGNED
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({"bool"})
FLOAT8 = frozenset(row.name for row in _ROWS if row.kind == "float8")  # conversions saturate
ANY = NUMBERS | BOOL
COMPUTE_DTYPES = frozenset(row.compute for row in _ROWS)
_IR_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


@functools.cache
def from_ir(dtype: ir.DataType | None) -> Dtype | None:
    """The row of an onnx_ir dtype; None where no kernel stores it (strings, other float8, 4-bit, complex, unknown)."""
    if dtype is None:
        return None
    return DTYPES.get(_IR_NAMES.get(dtype.name, dtype.name.lower()))


def to_ir(name: str) -> ir.DataType:
    """The onnx_ir dtype of a storage dtype name."""
    for ir_name, ours in _IR_NAMES.items():
        if name == ours:
            return ir.DataType[ir_name]
    return ir.DataType[name.upper()]

"""Result dtypes: how the dtype of an operator's result follows from the dtypes of its operands and its attributes.

The dtypes are onnx_ir's, because a model also has tensors that no kernel stores (strings, 4-bit integers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.program.dtypes import to_ir

Attributes = Mapping[str, Any]  # by name
# operands: the dtype of each operand, None where the operand is left out or its dtype is unknown. The rule returns None
# where operands and attributes do not say what the dtype of the result is.
ResultDtype = Callable[[Sequence[ir.DataType | None], Attributes], ir.DataType | None]


def operand_dtype(position: int) -> ResultDtype:
    """The result has the dtype of one operand."""
    return lambda operands, attributes: operands[position] if position < len(operands) else None


same = operand_dtype(0)


def always(dtype: str) -> ResultDtype:
    """The result has this dtype, given by its storage name, whatever the operands are."""
    result = to_ir(dtype)
    return lambda operands, attributes: result


def attribute_dtype(name: str) -> ResultDtype:
    """The result has the dtype whose number in ONNX the attribute holds."""

    def rule(operands: Sequence[ir.DataType | None], attributes: Attributes) -> ir.DataType | None:
        try:
            return ir.DataType(attributes[name])
        except (KeyError, ValueError):  # left out, a reference to a function's attribute, or no dtype
            return None

    return rule


def tensor_dtype(name: str, default: str) -> ResultDtype:
    """The result has the dtype of the tensor in an attribute, or the default where the attribute is left out."""

    def rule(operands: Sequence[ir.DataType | None], attributes: Attributes) -> ir.DataType | None:
        if name not in attributes:
            return to_ir(default)
        tensor: ir.TensorProtocol | None = attributes[name]
        return None if tensor is None else tensor.dtype

    return rule

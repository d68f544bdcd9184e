"""What the parts of a choice ask of values and nodes."""

from __future__ import annotations

import onnx_ir as ir

FLOAT = ir.DataType.FLOAT
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Identity"})


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is a float32 tensor."""
    return value is not None and value.dtype == FLOAT and isinstance(value.type, ir.TensorType)


def is_unknown(value: ir.Value) -> bool:
    """Whether a value that is used has no known dtype."""
    return value.dtype is None and bool(value.uses() or value.is_graph_output())


def readers_of(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]


def feeds_statistics(node: ir.Node) -> bool:
    """Whether the operator is one that norms and Softmax apply to a row before they reduce it."""
    squares = node.op_type == "Mul" and len(set(node.inputs)) == 1
    return node.domain == "" and (squares or node.op_type in ("Pow", "Abs", "Exp", "Sub"))

"""Operands of a node as lowering sees them: constants, indices, storage dtypes, and the operator applied to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.dtypes import Dtype
from onnxopt.program.expressions import Expr
from onnxopt.program.operators import table as operators
from onnxopt.program.operators.elementwise import Call

_MAX_SPACED = 1 << 16  # indices that are looked at


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a constant of one element, None for other values. A graph input is not a constant."""
    if value is None or value.const_value is None or value.is_graph_input() or value.const_value.size != 1:
        return None
    return value.const_value


def looks_up(node: ir.Node) -> bool:
    """Whether a Gather reads elements at indices that are computed, or not evenly spaced: a kernel reads these."""
    if (node.domain, node.op_type) != ("", "Gather") or len(node.inputs) != 2 or node.inputs[1] is None:
        return False
    indices = node.inputs[1]
    if indices.const_value is None or indices.is_graph_input() or indices.const_value.size > _MAX_SPACED:
        return True
    if indices.const_value.size <= 1:
        return False
    flat = indices.const_value.numpy().astype(np.int64)
    return flat.ndim > 1 or len(set(np.diff(flat).tolist())) > 1 or bool(flat.min() < 0 <= flat.max())


def apply_operator(
    node: ir.Node, expressions: Mapping[ir.Value, Expr], opsets: Mapping[str, int], shapes: Shapes
) -> Expr:
    """The node's result from its operands, through the operator table."""
    row = operators.find(node.domain, node.op_type, opsets.get(node.domain))
    if row is None:
        raise ValueError(f"The operator table has no {node.op_type}")
    first = next(v for v in node.inputs if v is not None)
    args = []
    for value in node.inputs:
        arg = None if value is None else expressions[value]
        if value is not None and arg is not None and row.exact and arg.is_float:
            arg = arg.narrow(storage(value, shapes).name)
        args.append(arg)
    call = Call(
        args=tuple(args),  # type: ignore[arg-type]  # None only where the row says that an operand is optional
        attributes={name: attribute.value for name, attribute in node.attributes.items()},
        operand=storage(first, shapes).name,
        result=storage(node.outputs[0], shapes).name,
    )
    return row.meaning(call)


def storage(value: ir.Value, shapes: Shapes) -> Dtype:
    """The storage dtype of a value. ValueError where kernels cannot store the dtype."""
    dtype = shapes.dtype(value)
    if dtype is None:
        raise ValueError(f"The dtype of `{value.name}` cannot be stored by a kernel")
    return dtype

"""Which models can end the process that runs them in ONNX Runtime, as far as their operators and sizes tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxopt.graph.placement import Dtypes, declared_dtype
from onnxopt.graph.shapes.infer import NodeError, infer

_DIVIDING = frozenset({"Div", "Mod"})  # of integers: SIGFPE for a divisor of 0, and for INT_MIN by -1
_LARGEST_DIM = 1 << 48  # ORT's shape inference overflows near 2^63, and then asserts
_LARGEST_DIVISOR = 1 << 16  # elements; larger constants are not read


def can_end_the_process(model: ir.Model) -> bool:
    """Whether an integer is divided by something else than a harmless constant, or a declared dim is huge.

    Operands whose dtype cannot be inferred count as integers. The model is not changed.
    """
    values = [*model.graph.inputs, *model.graph.outputs]
    dims = (dim for value in values if value.shape is not None for dim in value.shape)
    if any(isinstance(dim, int) and abs(dim) > _LARGEST_DIM for dim in dims):
        return True
    if not any(_divides_integers(node, declared_dtype) for node in _nodes(model)):
        return False
    try:
        inferred = infer(model).dtype
    except NodeError:
        return True
    return any(_divides_integers(node, inferred) for node in _nodes(model))


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _divides_integers(node: ir.Node, dtype_of: Dtypes) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _DIVIDING or len(node.inputs) != 2:
        return False
    fmod = node.attributes.get_int("fmod", 0)
    if fmod == 1:
        return False
    dtypes = {dtype_of(value) for value in node.inputs if value is not None}
    if any(dtype is not None and not dtype.is_integer() for dtype in dtypes):
        return False
    divisor = node.inputs[1]
    tensor = None if divisor is None else ir.convenience.get_const_tensor(divisor)
    if tensor is None or tensor.size > _LARGEST_DIVISOR:
        return True
    return bool(np.isin(tensor.numpy(), (0, -1)).any())

"""Which models can end the process that opens or runs them in ONNX Runtime, as far as operators and sizes tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.placement.place import declared_dtype
from onnxopt.graph.placement.provider_kernels import Dtypes
from onnxopt.graph.shapes.infer import NodeError, infer

_DIVIDING = frozenset({"Div", "Mod"})  # of integers: SIGFPE for a divisor of 0, and for INT_MIN by -1
_MULTIPLYING = frozenset({"Gemm", "MatMul"})
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


def trapping_optimizers(model: ir.Model) -> tuple[str, ...]:
    """ONNX Runtime's optimizers that can end the process when a session of the model opens on the CPU.

    NchwcTransformer of 1.24 to 1.31 does so (SIGSEGV, ONNX Runtime's issue 28392) where a MatMul of float16 with a
    constant reads a Transpose of three dims that puts the second one first, as torch.nn.TransformerEncoder exports it.
    """
    nodes = list(_nodes(model))
    dtypes = {value.dtype for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
    half = ir.DataType.FLOAT16 in dtypes
    swapped = any(n.op_type == "Transpose" and _is_swap(n.attributes.get_ints("perm", ())) for n in nodes)
    multiplied = any(n.op_type in _MULTIPLYING for n in nodes)
    return ("NchwcTransformer",) if half and swapped and multiplied else ()


def _is_swap(perm: Sequence[int]) -> bool:
    return len(perm) == 3 and perm[0] == 1


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

"""Products of joined columns whose depth is no multiple of 16 bytes, with zeros after the columns.

    MatMul(Concat(x, y), w) -> MatMul(Pad(Concat(x, y)), [w; 0])                 also Gemm; w has zeros after its rows

Matrix units load 16 bytes at a time, and cuBLASLt's fast algorithms need rows that begin at multiples of them (NVIDIA,
Matrix Multiplication Background User's Guide). The kernel that joins the columns writes the zeros too. A zero times a
zero adds nothing, whatever the columns hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.program.hardware import ACCESS_BYTES

_DTYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT})
_MAX_PARTS = 6  # of a Concat, so that a kernel joins them (program/indexing.py: MAX_CONDITIONS)


class _Product(NamedTuple):
    """A product of `joined` [.., K] and a constant matrix whose axis `depth` has K elements. missing: zeros to add."""

    joined: ir.Value
    weight: ir.Value
    depth: int
    missing: int


def align(graph: ir.Graph, inferred: Knowledge) -> int:
    """Change such products in place; how many."""
    count = 0
    for node in [n for n in graph if n.op_type in ("MatMul", "Gemm") and n.domain == ""]:
        product = _product(node, inferred)
        if product is None:
            continue
        joined, weight, depth, missing = product
        new, rank = NewNodes(graph, node), len(inferred.dims(joined) or ())
        pads = new.constant(np.array([0] * (2 * rank - 1) + [missing], np.int64))
        node.replace_input_with(0, new.add("Pad", [joined, pads], joined.dtype))
        node.replace_input_with(1, _padded(new, weight, depth, missing))
        count += 1
    return count


def _product(node: ir.Node, inferred: Knowledge) -> _Product | None:
    joined, weight = node.inputs[0], node.inputs[1]
    concat = None if joined is None else joined.producer()
    dims = inferred.dims(joined)
    if joined is None or weight is None or concat is None or not dims or joined.dtype not in _DTYPES:
        return None
    if (concat.domain, concat.op_type) != ("", "Concat") or len(concat.inputs) > _MAX_PARTS or not is_private(joined):
        return None
    if concat.attributes.get_int("axis", 0) not in (-1, len(dims) - 1):
        return None
    widths = [(inferred.dims(part) or (None,))[-1] for part in concat.inputs]
    if not all(isinstance(width, int) for width in widths) or not isinstance(dims[-1], int):
        return None
    if not is_constant(weight) or len(weight.const_value.shape) != 2 or not is_private(weight):  # type: ignore[union-attr]
        return None
    if node.attributes.get_int("transA", 0) != 0 or joined.dtype is None:
        return None
    missing = -dims[-1] % (ACCESS_BYTES * 8 // joined.dtype.bitwidth)
    return _Product(joined, weight, node.attributes.get_int("transB", 0) or 0, missing) if missing else None


def _padded(new: NewNodes, weight: ir.Value, axis: int, missing: int) -> ir.Value:
    tensor = weight.const_value
    assert tensor is not None
    dims = list(tensor.shape.numpy())
    dims[axis] += missing

    def evaluate() -> np.ndarray:
        return np.pad(tensor.numpy(), [(0, missing * (k == axis)) for k in range(2)])

    return new.lazy(f"{weight.name}/aligned", evaluate, tensor.dtype, dims)


RULES = (Pass(lambda model, scope: align(model.graph, scope.inferred) if scope.gpu else 0),)

"""Splits into parts that go different ways become Slices, where kernels of ours read all parts.

    a, b = Split(x, [1, n - 1]) -> a = Slice(x, 0, 1), b = Slice(x, 1, n)
    q, k, v = Split(x, axis=-1), Concat(f(q), r, axis=1), .. -> q = Slice(x, 0, n), k = Slice(x, n, 2 n), ..

A kernel writes outputs of one size, so it would have to contain all readers of parts that differ in size, or that
different Concats join with rows of other tensors; of a Slice, each reader's kernel takes in its own. A part that a
product or another operator of ONNX Runtime reads would be copied, which Split does for all parts at once: then it
stays. Kernels of products for GPUs read rows of a larger tensor, as those of one stream of a joint attention.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant, only_consumer
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass
from onnxopt.program.operators.row_operators import ROW_OPERATORS
from onnxopt.program.operators.table import OPERATORS

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
_MOVING = frozenset({"Concat", "Expand", "Pad", "Slice", "Transpose"})
_MAX_WORK = 16  # operators between a part and a Concat: more than norms and rotary embedding have
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def slice_parts(graph: ir.Graph, gpu: bool = False) -> int:
    """Let Slices take the place of each such Split of the main graph. Returns of how many; new nodes need names.

    gpu: whether kernels for GPUs are made of the result.
    """
    count = 0
    for node in [n for n in graph if n.op_type == "Split" and n.domain == ""]:
        sizes = _sizes(node)
        if _is_constant(node) or sizes is None:
            continue  # runtimes fold a constant's parts
        differ = len(set(sizes)) > 1 or (_is_of_columns(node) and _are_joined_apart(node.outputs))
        if (differ and all(map(_is_read_by_kernels, node.outputs))) or (
            gpu and all(_is_rows_of_product(part, _axis(node)) for part in node.outputs)
        ):
            _slice(graph, node, sizes)
            count += 1
    return count


def _is_constant(node: ir.Node) -> bool:
    return node.inputs[0] is None or node.inputs[0].const_value is not None


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0) or 0


def _sizes(node: ir.Node) -> list[int] | None:
    """The sizes of a Split's parts, where they are numbers."""
    sizes = []
    for part in node.outputs:
        size = part.shape[_axis(node)] if part.shape is not None and len(part.shape) else None
        if not isinstance(size, int):
            return None
        sizes.append(size)
    return sizes


def _is_read_by_kernels(part: ir.Value) -> bool:
    """Whether kernels of ours may take in all readers of a part, of views of it too. Unread parts are no obstacle."""
    if part.is_graph_output() or part.dtype not in _FLOATS:
        return False
    for reader in part.consumers():
        key = (reader.domain, reader.op_type)
        if reader.op_type in _VIEWS and reader.domain == "":
            if not _is_read_by_kernels(reader.outputs[0]):
                return False
        elif key not in OPERATORS and key not in ROW_OPERATORS and key not in {("", name) for name in _MOVING}:
            return False
    return True


def _is_rows_of_product(part: ir.Value, axis: int) -> bool:
    """Whether only a product with a constant reads a part, which is rows of a tensor. Unread parts are no obstacle."""
    reader = only_consumer(part)
    if reader is None or part.shape is None or part.dtype not in _FLOATS:
        return not part.uses() and not part.is_graph_output()
    is_product = (reader.domain, reader.op_type) == ("", "MatMul") and reader.inputs[0] is part
    return is_product and is_constant(reader.inputs[1]) and axis in (-2, len(part.shape) - 2)


def _is_of_columns(node: ir.Node) -> bool:
    shape = node.outputs[0].shape
    return shape is not None and _axis(node) in (-1, len(shape) - 1)


def _are_joined_apart(parts: Sequence[ir.Value]) -> bool:
    """Whether all that is made of each part goes to Concats along rows, to which no other part goes."""
    concats = [_concats(part) for part in parts]
    return all(concats) and sum(map(len, concats)) == len(set().union(*concats))


def _concats(part: ir.Value) -> set[ir.Node]:
    """The Concats along rows to which all that is made of a part goes after up to _MAX_WORK operators in sequence.

    Nothing where some of it goes elsewhere.
    """
    concats, seen, values = set[ir.Node](), {part}, [part]
    for _ in range(_MAX_WORK):
        results = list[ir.Value]()
        for value in values:
            if not value.uses():
                return set()
            for reader in value.consumers():
                result = reader.outputs[0]
                if (reader.domain, reader.op_type) != ("", "Concat"):
                    results += {result} - seen
                    seen.add(result)
                elif result.shape is None or _axis(reader) % len(result.shape) == len(result.shape) - 1:
                    return set()
                else:
                    concats.add(reader)
        values = results
    return set() if values else concats


def _slice(graph: ir.Graph, node: ir.Node, sizes: list[int]) -> None:
    source = node.inputs[0]
    assert source is not None
    new = NewNodes(graph, node)
    axis = new.constant(np.array([_axis(node)], np.int64))
    for part, end in zip(node.outputs, itertools.accumulate(sizes), strict=True):
        if not part.uses():
            continue
        begin = end - sizes[part.index() or 0]
        bounds = [new.constant(np.array([n], np.int64)) for n in (begin, end)]
        sliced = new.add("Slice", [source, *bounds, axis], part.dtype)
        sliced.shape = part.shape
        part.replace_all_uses_with(sliced)
    graph.remove(node, safe=True)


RULES = (Pass(lambda model, scope: slice_parts(model.graph, scope.gpu)),)

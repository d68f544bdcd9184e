"""Attention in five dims, with windows beside the heads, computes in four.

    MatMul(Softmax(MatMul(q [B, N, W, S, H], k^T) c), v)
        -> Reshape(MatMul(Softmax(MatMul(Reshape(q, [B, N W, S, H]), Reshape(k^T)) c), Reshape(v)), [B, N, W, S, V])

Encoders that attend within windows without cutting them out of the batch (Hiera) compute so. A window of a head is a
head of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.attention import near_misses
from onnxopt.graph.rewrite.attention.attention_operands import scalar
from onnxopt.graph.rewrite.rule_sets import Pass
from onnxopt.graph.shapes.value_dims import dims_of, same


def join_windows(model: ir.Model) -> int:
    """Let each such attention compute in four dims, in place. Returns how many."""
    count = 0
    for softmax, last in near_misses.softmaxes(model.graph):
        first = near_misses.product_before(softmax)
        between = _between(first, last, softmax)
        dims = [d for value in (*first.inputs, last.inputs[1]) if (d := _dims(value)) is not None]
        if between is None or last.outputs[0].is_graph_output() or len(dims) != len("qkv"):
            continue
        if not all(all(map(same, d[:3], dims[0][:3])) for d in dims):
            continue
        _merge(first, last, between, dims)
        count += 1
    return count


def _between(first: ir.Node, last: ir.Node, softmax: ir.Node) -> list[ir.Value] | None:
    """The results from the first product to the operand of the last one; None where more than a factor is between."""
    if first.op_type != "MatMul" or first.domain != "":
        return None
    values = [first.outputs[0]]
    while True:
        value = values[-1]
        if len(value.uses()) != 1 or value.is_graph_output():
            return None
        (node,) = value.consumers()
        if node is last:
            return values if last.inputs[0] is value else None
        if node is not softmax and not _is_factor(node, value):
            return None
        if node is softmax and node.attributes.get_int("axis", -1) != -1:
            return None
        values.append(node.outputs[0])


def _is_factor(node: ir.Node, value: ir.Value) -> bool:
    if node.domain != "" or node.op_type not in ("Mul", "Div", "Cast"):
        return False
    others = [v for v in node.inputs if v is not value]
    return node.inputs[0] is value and all(scalar(v) is not None and len(v.const_value.shape) < 2 for v in others)  # type: ignore[union-attr]


def _dims(value: ir.Value | None) -> tuple[int | ir.SymbolicDim, ...] | None:
    """Five dims, of which the batch alone may be symbolic."""
    if value is None or value.shape is None or len(value.shape) != 5:
        return None
    dims = dims_of(value)
    return dims if all(isinstance(d, int) for d in dims[1:]) else None


def _merge(
    first: ir.Node, last: ir.Node, between: Sequence[ir.Value], dims: Sequence[tuple[int | ir.SymbolicDim, ...]]
) -> None:
    graph = first.graph
    assert graph is not None
    new = NewNodes(graph, first)
    places = [(first, 0), (first, 1), (last, 1)]
    for (node, position), (batch, heads, windows, *rest) in zip(places, dims, strict=True):
        value = node.inputs[position]
        assert value is not None
        four = [heads * windows, *rest]  # type: ignore[operator]
        place = new if node is first else NewNodes(graph, last)
        merged = place.add("Reshape", [value, place.constant(np.array([0, *four], np.int64))], value.dtype)
        merged.shape = ir.Shape([batch, *four])
        node.replace_input_with(position, merged)
    batch, heads, windows, *_ = dims[0]
    rows, keys, width = dims[0][3], dims[1][4], dims[2][4]
    for value in between:
        value.shape = ir.Shape([batch, heads * windows, rows, keys])  # type: ignore[operator]
    result = last.outputs[0]
    added = NewNodes(graph, last, after=last)
    shape = added.constant(np.array([0, heads, windows, rows, width], np.int64))
    uses = list(result.uses())
    apart = added.add("Reshape", [result, shape], result.dtype)
    apart.shape, result.shape = result.shape, ir.Shape([batch, heads * windows, rows, width])  # type: ignore[operator]
    for use in uses:
        use.node.replace_input_with(use.idx, apart)


RULES = (Pass(lambda model, _: join_windows(model)),)

"""Operators that opset 23 added become those of opset 20, as exporters of that opset write them.

    RotaryEmbedding(x, cos, sin, positions?)   -> x cos + Concat(-x2, x1) sin          over halves x1, x2
    Attention(q, k, v, mask?, past_k?, past_v?) -> MatMul(Softmax(MatMul(q, k^T) scale + mask), v)

So rules know one form, and the model can be lowered to an opset whose operators have kernels. These stay as they are:
attention with a cap, with its scores as an output, that is causal (infinite scores of hidden keys are another NaN in
ONNX Runtime's kernel) or under a bool mask (a query whose keys are all hidden gets zeros), and rotary embedding of
neighbouring elements or of a part of each head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import operand
from onnxopt.graph.passes.contrib.building import (
    Decomposition,
    NoStandardForm,
    Standard,
    dtype_of,
    rank_of,
    required,
    size_of,
    standard_form,
    unread,
    usual,
)
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.infer import infer

FIRST_OPSET = 23
_TO_HEADS = (0, 2, 1, 3)


class Opset23Pass(ir.passes.InPlacePass):
    """The pass, which infers the shapes of a model that has such operators. New nodes need names."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [node for graph in model.graphs() for node in graph if _decomposition(node)]
        if model.opset_imports.get("", 0) < FIRST_OPSET or not nodes:
            return ir.passes.PassResult(model, False)
        UniqueNamesPass()(model)
        infer(model).write()
        return ir.passes.PassResult(model, sum(map(_decomposed, nodes)) > 0)


def _decomposition(node: ir.Node) -> Decomposition | None:
    return {"RotaryEmbedding": _rotary, "Attention": _attention}.get(node.op_type) if node.domain == "" else None


def _decomposed(node: ir.Node) -> bool:
    decomposition = _decomposition(node)
    form = None if decomposition is None else standard_form(node, decomposition)
    if form is None:
        return False
    op, results = form
    op.replace(results)
    return True


def _rotary(op: Standard) -> Sequence[ir.Value | None]:
    node = op.node
    usual(node, interleaved=0, rotary_embedding_dim=0)
    x, positions, count = required(node, 0), operand(node, 3), node.attributes.get_int("num_heads", 0)
    heads = _in_heads(op, x, count)
    half = size_of(x, 3) // 2 if rank_of(x) == 4 else size_of(x, 2) // count // 2
    tables = []
    for table in (required(node, 1), required(node, 2)):
        if size_of(table, rank_of(table) - 1) != half:
            raise NoStandardForm("a part of each head is rotated")
        rows = op("Concat", table, table, axis=-1) if positions is None else op.rows_twice(table, positions)
        tables.append(op("Unsqueeze", rows, op.constant([1])))
    first, second = op.several("Split", 2, heads, op.constant([half, half]), axis=-1)
    turned = op("Concat", op("Neg", second), first, axis=-1)
    result = op("Add", op("Mul", heads, tables[0]), op("Mul", turned, tables[1]))
    return (result if rank_of(x) == 4 else _joined(op, result, size_of(x, 2)),)


def _attention(op: Standard) -> Sequence[ir.Value | None]:
    node = op.node
    unread(node, 3)
    usual(node, softcap=0.0, is_causal=0)
    q, mask, past = required(node, 0), operand(node, 3), operand(node, 4)
    keys, values = required(node, 1), required(node, 2)
    of_keys = node.attributes.get_int("kv_num_heads", 0)
    heads = _in_heads(op, q, node.attributes.get_int("q_num_heads", 0))
    k, v = _in_heads(op, keys, of_keys), _in_heads(op, values, of_keys)
    if operand(node, 6) is not None:
        raise NoStandardForm("sequences have lengths of their own")
    if past is not None:
        k, v = op("Concat", past, k, axis=2), op("Concat", required(node, 5), v, axis=2)
    count, groups, size = _sizes(node, q, keys)
    wide_k, wide_v = (_repeated(op, x, count, groups, _width(node, y)) for x, y in ((k, keys), (v, values)))
    scores = op("MatMul", heads, op("Transpose", wide_k, perm=(0, 1, 3, 2)))
    scores = op("Mul", scores, op.number(node.attributes.get_float("scale", 1 / math.sqrt(size)), q))
    if mask is not None and dtype_of(mask) == ir.DataType.BOOL:
        raise NoStandardForm("queries whose keys are all hidden get zeros")
    if mask is not None:
        scores = op("Add", scores, mask)
    precision = node.attributes.get_int("softmax_precision", 0)
    wide = precision and ir.DataType(precision) != dtype_of(q)
    weights = op("Softmax", op("Cast", scores, to=precision) if wide else scores, axis=-1)
    result = op("MatMul", op("Cast", weights, to=int(dtype_of(q))) if wide else weights, wide_v)
    if rank_of(q) == 3:
        result = _joined(op, result, count * _width(node, values))
    return result, k, v


def _sizes(node: ir.Node, q: ir.Value, keys: ir.Value) -> tuple[int, int, int]:
    """Heads of queries, heads of queries for each head of keys, and elements of a head."""
    if rank_of(q) == 4:
        count, of_keys, size = size_of(q, 1), size_of(keys, 1), size_of(q, 3)
    else:
        count, of_keys = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        size = size_of(q, 2) // count
    if of_keys == 0 or count % of_keys:
        raise NoStandardForm("heads of keys do not divide those of queries")
    return count, count // of_keys, size


def _width(node: ir.Node, values: ir.Value) -> int:
    """Elements of a head of keys or values."""
    return (
        size_of(values, 3) if rank_of(values) == 4 else size_of(values, 2) // node.attributes.get_int("kv_num_heads", 1)
    )


def _in_heads(op: Standard, x: ir.Value, count: int) -> ir.Value:
    """x [B, N, S, H], or of [B, S, N H]."""
    if rank_of(x) == 4:
        return x
    if not count or size_of(x, 2) % count:
        raise NoStandardForm("the number of heads does not divide the columns")
    return op("Transpose", op("Reshape", x, op.constant([0, 0, count, size_of(x, 2) // count])), perm=_TO_HEADS)


def _joined(op: Standard, x: ir.Value, width: int) -> ir.Value:
    return op("Reshape", op("Transpose", x, perm=_TO_HEADS), op.constant([0, 0, width]))


def _repeated(op: Standard, x: ir.Value, count: int, groups: int, size: int) -> ir.Value:
    """Heads of keys or values, each for a group of heads of queries."""
    if groups == 1:
        return x
    spread = op("Expand", op("Unsqueeze", x, op.constant([2])), op.constant([1, 1, groups, 1, 1]))
    return op("Reshape", spread, op.constant([0, count, -1, size]))

"""Attention and rotary embedding, as exporters decompose them.

    Attention(x, w, b?, mask?, bias?)                 -> the attention of x w + b in three parts
    MultiHeadAttention(q, k, v, b?, mask?, bias?)     -> MatMul(Softmax(MatMul(q, k^T) scale + bias + mask), v)
    RotaryEmbedding(x, positions, cos, sin)           -> x cos + Concat(-x2, x1) sin      over halves x1, x2

mask: the number of keys (B), which key is shown (B, T), or which for each query (B, S, T). Hidden keys get
mask_filter_value added to their scores; a causal mask sets scores to the lowest number. With past keys and values, with
masks of packed sequences, with rotary embedding inside, and before GroupQueryAttention, the operators stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant, operand
from onnxopt.graph.passes.contrib.building import (
    Decomposition,
    NoStandardForm,
    Standard,
    absent,
    dtype_of,
    rank_of,
    required,
    size_of,
    unread,
    usual,
)
from onnxopt.graph.shapes.contrib_schemas import CONTRIB

_FILTER = -10000.0  # default of mask_filter_value
_LOWEST = {ir.DataType.FLOAT16: -65504.0, ir.DataType.BFLOAT16: -3.3895313892515355e38}
_TO_HEADS = (0, 2, 1, 3)


def _attention(op: Standard) -> Sequence[ir.Value | None]:
    node = op.node
    absent(node, 4, 6)
    unread(node, 1)
    usual(node, do_rotary=0, past_present_share_buffer=0)
    x, weight, bias = required(node, 0), required(node, 1), operand(node, 2)
    width = size_of(weight, 1)
    sizes = list(node.attributes.get_ints("qkv_hidden_sizes", ()) or [width // 3] * 3)
    ends = [0, *np.cumsum(sizes).tolist()]
    ranges = list(itertools.pairwise(ends))
    if is_constant(weight) and (bias is None or is_constant(bias)):
        parts = [op("MatMul", x, op.part(weight, *range_)) for range_ in ranges]
        if bias is not None:
            parts = [op("Add", p, op.part(bias, *range_)) for p, range_ in zip(parts, ranges, strict=True)]
    else:
        product = op("MatMul", x, weight)
        whole = product if bias is None else op("Add", product, bias)
        parts = list(op.several("Split", 3, whole, op.constant(sizes), axis=-1))
    heads = node.attributes.get_int("num_heads", 0)
    in_heads = [_to_heads(op, part, heads, size // heads) for part, size in zip(parts, sizes, strict=True)]
    return (_attended(op, in_heads, sizes[0] // heads, x, sizes[2]), None)


def _multi_head(op: Standard) -> Sequence[ir.Value | None]:
    node = op.node
    absent(node, 6, 7, 8, 9)
    unread(node, 1, 2, 3)
    heads = node.attributes.get_int("num_heads", 0)
    q, k, v, bias = required(node, 0), operand(node, 1), operand(node, 2), operand(node, 3)
    if rank_of(q) != 3 or k is None or rank_of(k) == 5 or v is None:
        raise NoStandardForm("q, k and v are packed")
    width, values = size_of(q, 2), size_of(v, 2) if rank_of(v) == 3 else heads * size_of(v, 3)
    if rank_of(k) == 4 or rank_of(v) == 4:
        if bias is not None or rank_of(k) != rank_of(v):
            raise NoStandardForm("keys of four dims have a bias, or values other dims")
        in_heads = [_to_heads(op, q, heads, width // heads), k, v]
    else:
        parts: list[ir.Value] = [q, k, v]
        if bias is not None:
            ends = [0, width, 2 * width, 2 * width + values]
            biases = (
                [op.part(bias, *r) for r in itertools.pairwise(ends)]
                if is_constant(bias)
                else op.several("Split", 3, bias, op.constant(np.diff(ends)), axis=0)
            )
            parts = [op("Add", x, b) for x, b in zip(parts, biases, strict=True)]
        sizes = (width, width, values)
        in_heads = [_to_heads(op, part, heads, size // heads) for part, size in zip(parts, sizes, strict=True)]
    return (_attended(op, in_heads, width // heads, k, values),)


def _to_heads(op: Standard, x: ir.Value, heads: int, size: int) -> ir.Value:
    return op("Transpose", op("Reshape", x, op.constant([0, 0, heads, size])), perm=_TO_HEADS)


def _attended(op: Standard, heads: Sequence[ir.Value], size: int, keys: ir.Value, width: int) -> ir.Value:
    """The attention of q, k and v in heads of `size` elements: (B, S, width). keys: (B, T, ..) or (B, N, T, ..)."""
    node, attributes, (q, k, v) = op.node, op.node.attributes, heads
    x, bias, mask = required(node, 0), operand(node, 5), operand(node, 3 if node.op_type == "Attention" else 4)
    scale = attributes.get_float("scale", 0.0) or 1 / math.sqrt(size)
    scores = op("MatMul", q, op("Transpose", k, perm=(0, 1, 3, 2)))
    scores = op("Mul", scores, op.number(scale, x))
    axis = rank_of(keys) - 2
    if attributes.get_int("unidirectional", 0):
        if keys is not x and keys.shape[axis] != x.shape[1]:  # type: ignore[index]
            raise NoStandardForm("attention is causal, and keys may be others than queries")
        lowest = _LOWEST.get(dtype_of(x), float(np.finfo(np.float32).min))
        scores = op("Where", _causal(op, x), scores, op.number(lowest, x))
    if bias is not None:
        scores = op("Add", scores, bias)
    if mask is not None:
        hidden = op.number(attributes.get_float("mask_filter_value", _FILTER), x)
        scores = op("Add", scores, op("Where", _shown(op, mask, x, keys, axis), op.number(0, x), hidden))
    attended = op("MatMul", op("Softmax", scores, axis=-1), v)
    return op("Reshape", op("Transpose", attended, perm=_TO_HEADS), op.constant([0, 0, width]))


def _positions(op: Standard, x: ir.Value, axis: int) -> ir.Value:
    """The numbers from 0 to the size of a dim."""
    size = x.shape[axis] if x.shape is not None else None
    if isinstance(size, int):
        return op.constant(np.arange(size))
    count = op("Squeeze", op("Shape", x, start=axis, end=axis + 1), op.constant([0]))
    zero, one = (op.constant(np.array(n, np.int64)) for n in (0, 1))
    return op("Range", zero, count, one)


def _causal(op: Standard, x: ir.Value) -> ir.Value:
    """(S, S), true where the key is not after the query."""
    positions = _positions(op, x, 1)
    return op("LessOrEqual", positions, op("Unsqueeze", positions, op.constant([1])))


def _shown(op: Standard, mask: ir.Value, x: ir.Value, keys: ir.Value, axis: int) -> ir.Value:
    """Which keys are shown, in four dims."""
    if dtype_of(mask) not in (ir.DataType.INT32, ir.DataType.INT64):
        raise NoStandardForm("the mask is not of integers")
    rank = rank_of(mask)
    if rank == 1:
        if mask.shape is None or x.shape is None or mask.shape[0] != x.shape[0]:
            raise NoStandardForm("the mask may be of packed sequences, or have two numbers a sequence")
        ends = op("Unsqueeze", op("Cast", mask, to=int(ir.DataType.INT64)), op.constant([1, 2, 3]))
        return op("Less", _positions(op, keys, axis), ends)
    if rank not in (2, 3):
        raise NoStandardForm("the mask has four dims")
    shown = op("Greater", mask, op.number(0, mask))
    return op("Unsqueeze", shown, op.constant([1, 2] if rank == 2 else [1]))


def _rotary(op: Standard) -> Sequence[ir.Value | None]:
    node = op.node
    usual(node, interleaved=0, rotary_embedding_dim=0, is_packed_batching=0, scale=1.0)
    if any((user.domain, user.op_type) == (CONTRIB, "GroupQueryAttention") for user in node.outputs[0].consumers()):
        raise NoStandardForm("attention that stays reads the rotated heads, and no kernel fuses their rotation with it")
    x, positions, cos, sin = (required(node, k) for k in range(4))
    half = size_of(cos, 1)
    x_in_heads = rank_of(x) == 4
    if x_in_heads and size_of(x, 3) != 2 * half:
        raise NoStandardForm("a part of each head is rotated")
    heads = x if x_in_heads else _to_heads(op, x, size_of(x, 2) // (2 * half), 2 * half)
    tables = []
    for table in (cos, sin):
        rows = op.rows_twice(table, _row_numbers(op, positions, x, 2 if x_in_heads else 1))
        tables.append(op("Unsqueeze", rows, op.constant([1])))
    first, second = op.several("Split", 2, heads, op.constant([half, half]), axis=-1)
    turned = op("Concat", op("Neg", second), first, axis=-1)
    result = op("Add", op("Mul", heads, tables[0]), op("Mul", turned, tables[1]))
    if x_in_heads:
        return (result,)
    return (op("Reshape", op("Transpose", result, perm=_TO_HEADS), op.constant([0, 0, size_of(x, 2)])),)


def _row_numbers(op: Standard, positions: ir.Value, x: ir.Value, axis: int) -> ir.Value:
    """(B, S) or (1, S): which row of the tables belongs to each token."""
    if rank_of(positions) == 2:
        return positions
    if positions.shape is None or positions.shape[0] != 1:
        raise NoStandardForm("the positions are not one number")
    return op("Unsqueeze", op("Add", _positions(op, x, axis), positions), op.constant([0]))


ATTENTION: dict[str, Decomposition] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
}

"""Norms with the sum that they normalize, embeddings with their norm, and norms of groups in NHWC.

    SkipLayerNormalization(x, skip, scale, beta?, bias?)          -> LayerNormalization(x + bias + skip, scale, beta)
    SkipSimplifiedLayerNormalization(x, skip, scale, bias?)       -> the norm without a mean of x + bias + skip
    EmbedLayerNormalization(ids, segments?, ..., mask?, places?)  -> LayerNormalization(words[ids] + places + segments)
                                                                     ReduceSum(mask == 1), the number of tokens
    GroupNorm(x, scale, beta), SkipGroupNorm(x, scale, beta, skip, bias?)
                                     -> InstanceNormalization of groups, in NCHW; SiLU where `activation` says so

The bias joins the operand that a product computes, so that it can be an epilogue of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import operand
from onnxopt.graph.passes.contrib.building import (
    Decomposition,
    NoStandardForm,
    Standard,
    dtype_of,
    is_read,
    rank_of,
    required,
    size_of,
    uncast,
    unread,
)
from onnxopt.graph.passes.simplified_norms import NARROW, simplified_norm

_EPSILON = 1e-12  # default of Skip and EmbedLayerNormalization
_GROUP_EPSILON = 1e-5
_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulNBits")


def _summed(op: Standard, bias_at: int) -> ir.Value:
    x, skip, bias = required(op.node, 0), required(op.node, 1), operand(op.node, bias_at)
    if bias is None:
        return op("Add", x, skip)
    of_skip = _is_product(skip) and not _is_product(x) and skip.shape == x.shape
    first, second = (skip, x) if of_skip else (x, skip)
    return op("Add", op("Add", first, bias), second)


def _is_product(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in _PRODUCTS


def _skip_norm(op: Standard) -> Sequence[ir.Value | None]:
    unread(op.node, 1, 2)
    total, scale, beta = _summed(op, 4), required(op.node, 2), operand(op.node, 3)
    operands = (total, scale) if beta is None else (total, scale, beta)
    normal = op("LayerNormalization", *operands, axis=-1, epsilon=op.node.attributes.get_float("epsilon", _EPSILON))
    return (normal, None, None, total)


def _skip_simplified_norm(op: Standard) -> Sequence[ir.Value | None]:
    unread(op.node, 1, 2)
    total, scale = _summed(op, 3), required(op.node, 2)
    if dtype_of(scale) not in NARROW and dtype_of(scale) != ir.DataType.FLOAT:
        raise NoStandardForm("the norm is not of float32 or 16 bits")
    return (simplified_norm(op, total, scale, op.node.attributes.get_float("epsilon", _EPSILON)), None, None, total)


def _embedded(op: Standard) -> Sequence[ir.Value | None]:
    ids, segments, words, places, segment_table = (operand(op.node, k) for k in range(5))
    scale, beta, mask, positions = (operand(op.node, k) for k in range(5, 9))
    if ids is None or words is None or places is None or scale is None or beta is None:
        raise NoStandardForm("EmbedLayerNormalization lacks an operand")
    total = op("Gather", words, uncast(ids))
    if segments is not None and segment_table is not None:
        total = op("Add", total, op("Gather", segment_table, uncast(segments)))
    if positions is None:
        count = op("Shape", ids, start=1, end=2)
        rows = op("Slice", places, op.constant([0]), count, op.constant([0]))
    else:
        rows = op("Gather", places, positions)
    total = op("Add", total, rows)
    epsilon = op.node.attributes.get_float("epsilon", _EPSILON)
    normal = op("LayerNormalization", total, scale, beta, axis=-1, epsilon=epsilon)
    counted = None
    if len(op.node.outputs) > 1 and is_read(op.node.outputs[1]):
        counted = _token_counts(op, ids, mask)
    return (normal, counted, total)


def _token_counts(op: Standard, ids: ir.Value, mask: ir.Value | None) -> ir.Value:
    """How many tokens of each row the mask shows; zeros without a mask."""
    if mask is None:
        zero = ir.tensor(np.zeros(1, np.int32))
        return op("ConstantOfShape", op("Shape", ids, start=0, end=1), value=zero)
    shown = op("Cast", op("Equal", mask, op.number(1, mask)), to=int(ir.DataType.INT32))
    return op("ReduceSum", shown, op.constant([1]), keepdims=0)


def _group_norm(op: Standard) -> Sequence[ir.Value | None]:
    return (_grouped(op, required(op.node, 0)),)


def _skip_group_norm(op: Standard) -> Sequence[ir.Value | None]:
    x, skip, bias = required(op.node, 0), required(op.node, 3), operand(op.node, 4)
    last = op.node.attributes.get_int("channels_last", 1)
    if rank_of(skip) == 2:
        skip = op("Unsqueeze", skip, op.constant([1, 2] if last else [2, 3]))
    elif not last and size_of(skip, 1) != size_of(x, 1):
        raise NoStandardForm("`skip` has other dims than X")
    if bias is not None and not last:
        bias = op("Unsqueeze", bias, op.constant([1, 2]))
    total = op("Add", x if bias is None else op("Add", x, bias), skip)
    total.shape, total.type = x.shape, x.type
    return (_grouped(op, total), total)


def _grouped(op: Standard, x: ir.Value) -> ir.Value:
    """The norm over groups of channels, and SiLU where the node has it."""
    node, scale, beta = op.node, required(op.node, 1), required(op.node, 2)
    last, groups = node.attributes.get_int("channels_last", 1), node.attributes.get_int("groups", 1)
    if rank_of(x) != 4 or node.attributes.get_int("activation", 0) not in (0, 1):
        raise NoStandardForm("the norm of groups has not four dims, or an unknown activation")
    maps = op("Transpose", x, perm=(0, 3, 1, 2)) if last else x
    ones, zeros = (op.constant(np.full(groups, n, dtype_of(x).numpy())) for n in (1, 0))
    epsilon = node.attributes.get_float("epsilon", _GROUP_EPSILON)
    normal = op(
        "InstanceNormalization", op("Reshape", maps, op.constant([0, groups, -1])), ones, zeros, epsilon=epsilon
    )
    result = op("Reshape", normal, op("Shape", maps))
    for operator, number in (("Mul", scale), ("Add", beta)):
        column = op("Unsqueeze", number, op.constant([1, 2]))
        narrow = dtype_of(number) != dtype_of(x)
        result = op(operator, result, op("Cast", column, to=int(dtype_of(x))) if narrow else column)
    if node.attributes.get_int("activation", 0):
        result = op("Mul", result, op("Sigmoid", result))
    return op("Transpose", result, perm=(0, 2, 3, 1)) if last else result


NORMS: dict[str, Decomposition] = {
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_norm,
    "EmbedLayerNormalization": _embedded,
    "GroupNorm": _group_norm,
    "SkipGroupNorm": _skip_group_norm,
}

"""Attention of one new token behind a cache, and the nodes that compute the lengths of its sequences.

Attention of several new tokens under a mask is found in masked.py.

    y, present_k, present_v = GroupQueryAttention(q | packed q k v, k, v, past_k, past_v, lengths, total)

ONNX Runtime's operator copies the cache, runs separate kernels for lengths, masks and results, and then reads the copy.
Here one kernel reads the cache, attends to it, and writes it with the new token; another kernel joins the results of
the first kernel's blocks (cuda_kernels/attention/). Only lengths that prove that every sequence fills its cache are
accepted: a constant, or the nodes that rewrite/attention/cached.py writes. A cache of int8 or e4m3 codes with scales is
read and extended as it is.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.operands import constant
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.attention import masked
from onnxopt.program.attention import CODES, STORED, CacheCodes, TokenAttention, why_heads_do_not_fit

OPERATOR = ("com.microsoft", "GroupQueryAttention")
_Q, _K, _V, _PAST_K, _PAST_V, _LENGTHS, _TOTAL = range(7)
_K_SCALE, _V_SCALE = 12, 13
_NO_CACHE = "GroupQueryAttention has no cache of keys and values"
_LAUNCHES_BEFORE = 10  # copies of both caches, memsets, lengths, fills, appending, attention and joining its splits
# Attributes that have no effect at these values. The kernel supports all values of scale and of the numbers of heads.
_PLAIN = {
    "do_rotary": (0,), "local_window_size": (-1,), "softcap": (0.0,), "smooth_softmax": (0, -1),
    "rotary_interleaved": (0, 1), "qk_output": (0,), "sliding_window_cache": (0,), "kv_cache_bit_width": (0, 8),
    "causal": (0, 1), "k_quant_type": ("NONE", "PER_TENSOR", "PER_CHANNEL"),
    "v_quant_type": ("NONE", "PER_TENSOR", "PER_CHANNEL"),
}  # fmt: skip
_PER = {"PER_TENSOR": "tensor", "PER_CHANNEL": "channel"}


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every such operator and the nodes that only compute its lengths, and refusals of the others."""
    regions, refusals = masked.find(context, kind)
    for node in list(context.order):
        if (node.domain, node.op_type) != OPERATOR or context.is_owned(node):
            continue
        lengths = _lengths(node, context.shapes)
        meaning = _meaning(node, context.shapes) if not isinstance(lengths, str) else lengths
        if isinstance(meaning, str) or isinstance(lengths, str):
            refusals.append(Refusal(node.name or "", node.op_type, "", str(meaning)))
            continue
        nodes = tuple(sorted((*lengths, node), key=context.order.__getitem__))
        moved = _traffic(node, context.shapes)
        region = Region(nodes, _operands(node), tuple(node.outputs[:3]), moved, kind, meaning)
        region.verify()
        regions.append(region)
        context.contract(nodes)
    return regions, refusals


def lower(region: Region, shapes: Shapes) -> TokenAttention:
    """The meaning of a region of `find`."""
    if (region.nodes[-1].domain, region.nodes[-1].op_type) == masked.OPERATOR:
        return masked.lower(region, shapes)
    meaning = _meaning(region.nodes[-1], shapes)
    if isinstance(meaning, str):
        raise ValueError(f"`{region.nodes[-1].name}` is not attention of one token: {meaning}")
    return meaning


def _operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """q, or q, k and v; the caches; and their scales, once where both have the same."""
    return tuple(dict.fromkeys(v for v in (*node.inputs[: _PAST_V + 1], *_scales(node)) if v is not None))


def _scales(node: ir.Node) -> tuple[ir.Value, ...]:
    return tuple(v for v in node.inputs[_K_SCALE : _V_SCALE + 1] if v is not None)


def _meaning(node: ir.Node, shapes: Shapes) -> TokenAttention | str:
    """What the operator computes, or the reason why the kernel cannot run it."""
    for name, values in _PLAIN.items():
        if name in node.attributes and node.attributes[name].value not in values:
            return f"GroupQueryAttention has {name} = {node.attributes[name].value}, which the kernel does not support"
    other = [v for k, v in enumerate(node.inputs) if k > _TOTAL and k not in (_K_SCALE, _V_SCALE)]
    if any(v is not None for v in other) or len(node.outputs) != 3:
        return "GroupQueryAttention has inputs or outputs that the kernel does not support"
    q, past = node.inputs[_Q], node.inputs[_PAST_K]
    if q is None or past is None or node.inputs[_PAST_V] is None:
        return _NO_CACHE
    operands = _operands(node)
    dtype, stored = shapes.dtype(q), shapes.dtype(past)
    if dtype is None or dtype.name not in STORED:
        return f"The kernel supports {' and '.join(STORED)}; `{q.name}` has dtype {dtype.name if dtype else 'unknown'}"
    codes = _codes(node, operands, shapes)
    if isinstance(codes, str):
        return codes
    if codes is None and any(shapes.dtype(v) != dtype for v in operands):
        return f"The inputs of GroupQueryAttention do not all have dtype {dtype.name}"
    assert stored is not None
    q_dims, dims = shapes.dims(q), shapes.dims(past)
    if q_dims is None or len(q_dims) != 3 or q_dims[1] != 1:
        return "The number of new tokens is not known to be 1"
    if dims is None or len(dims) != 4 or not isinstance(dims[3], int):
        return "The size of a head is unknown"
    heads, groups = (node.attributes.get_int(n) or 0 for n in ("num_heads", "kv_num_heads"))
    if reason := why_heads_do_not_fit(heads, groups, dims[3], dtype.name):
        return reason
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(dims[3])
    at = {} if node.inputs[_K] is None else {"k": 1, "v": 2, "past_k": 3, "past_v": 4}
    inputs = tuple(d.name for d in map(shapes.dtype, operands) if d is not None)
    outputs = (dtype.name, stored.name, stored.name)
    return TokenAttention(inputs, outputs, heads, groups, dims[3], scale, **at, codes=codes)


def _codes(node: ir.Node, operands: tuple[ir.Value, ...], shapes: Shapes) -> CacheCodes | str | None:
    """How the cache is coded, None where it is not; a reason where the kernel does not read such codes."""
    kinds = [node.attributes.get_string(f"{x}_quant_type", "NONE") or "NONE" for x in "kv"]
    scales = _scales(node)
    if kinds == ["NONE", "NONE"] and not scales:
        return None
    dtypes = [shapes.dtype(v) for v in node.inputs[_PAST_K : _PAST_V + 1] if v is not None]
    if "NONE" in kinds or len(scales) != len(kinds) or dtypes[0] != dtypes[1]:
        return "GroupQueryAttention does not say how both keys and values are quantized"
    if dtypes[0] is None or dtypes[0].name not in CODES:
        return f"The kernel reads caches of {' and '.join(CODES)}; `{operands[-1].name}` scales another one"
    if any(shapes.dtype(v) != shapes.dtype(operands[0]) for v in node.inputs[_Q : _V + 1] if v is not None):
        return "The new tokens of GroupQueryAttention differ in dtype"
    if any((dtype := shapes.dtype(v)) is None or dtype.name != "float32" for v in scales):
        return "The scales of a cache of GroupQueryAttention are not float32"
    k, v = (operands.index(scale) for scale in scales)
    return CacheCodes(k, v, _PER[kinds[0]], _PER[kinds[1]], by_reciprocal=True)


def _lengths(node: ir.Node, shapes: Shapes) -> tuple[ir.Node, ...] | str:
    """The nodes that compute the lengths, none for constants; a reason where a sequence may not fill its cache."""
    past, lengths, total = (node.inputs[k] for k in (_PAST_K, _LENGTHS, _TOTAL))
    if past is None or lengths is None or total is None:
        return _NO_CACHE
    dims = shapes.dims(past)
    tokens = dims[2] if dims is not None and len(dims) == 4 else None
    fixed, whole = _fixed(lengths), _fixed(total)
    if fixed is not None and whole is not None:
        fills = isinstance(tokens, int) and np.all(fixed == tokens) and np.all(whole == tokens + 1)
        return () if fills else _may_not_fill(lengths)
    matched: set[ir.Node] = set()
    if not _is_count_of(total, past, 1, matched) or not _is_filled(lengths, past, matched):
        return _may_not_fill(lengths)
    if any(use.node not in matched and use.node is not node for n in matched for v in n.outputs for use in v.uses()):
        return f"The sequence lengths `{lengths.name}` are read by other nodes too"
    return tuple(matched)


def _may_not_fill(lengths: ir.Value) -> str:
    return f"ONNX Runtime's kernel runs it: `{lengths.name}` do not prove that the tokens fill the cache"


def _is_filled(value: ir.Value, past: ir.Value, matched: set[ir.Node]) -> bool:
    """Whether a value is Expand(Range(P, P + 1, 1), B) for the cache's length P. Adds the nodes to `matched`."""
    expand = _match(value, "Expand", matched)
    counted = _match(expand.inputs[0], "Range", matched) if expand is not None else None
    if expand is None or counted is None or not _is_one(counted.inputs[2]):
        return False
    batch = expand.inputs[1]
    if batch is None or _fixed(batch) is None:
        shape = _match(batch, "Shape", matched)
        if shape is None or shape.inputs[0] is not past or _dim(shape, rank=4) != 0:
            return False
    first, limit = counted.inputs[:2]
    return _is_count_of(first, past, 0, matched) and _is_count_of(limit, past, 1, matched)


def _is_count_of(value: ir.Value | None, past: ir.Value, added: int, matched: set[ir.Node]) -> bool:
    """Whether a value is Cast(Squeeze(Shape(past)[2:3])) + added, with added 0 or 1. Adds the nodes to `matched`."""
    if added:
        add = _match(value, "Add", matched)
        return add is not None and _is_one(add.inputs[1]) and _is_count_of(add.inputs[0], past, 0, matched)
    cast = _match(value, "Cast", matched)
    squeeze = _match(cast.inputs[0], "Squeeze", matched) if cast is not None else None
    shape = _match(squeeze.inputs[0], "Shape", matched) if squeeze is not None else None
    return shape is not None and shape.inputs[0] is past and _dim(shape, rank=4) == 2


def _match(value: ir.Value | None, op_type: str, matched: set[ir.Node]) -> ir.Node | None:
    """The producer of a value if it is an ONNX operator of this type, else None. Adds the node to `matched`."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or node.domain != "":
        return None
    matched.add(node)
    return node


def _fixed(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant, None for other values. A graph input is not a constant."""
    return None if value.const_value is None or value.is_graph_input() else value.const_value.numpy()


def _is_one(value: ir.Value | None) -> bool:
    number = constant(value)
    return number is not None and bool(number.numpy().item() == 1)


def _dim(shape: ir.Node, rank: int) -> int | None:
    """The one dim, counted from the first, that a Shape of a tensor of this rank returns; None for several dims."""
    start, end = shape.attributes.get_int("start", 0) or 0, shape.attributes.get_int("end", rank)
    first, last = (at + rank if at is not None and at < 0 else at for at in (start, end))
    return first if first is not None and last == first + 1 else None


def _traffic(node: ir.Node, shapes: Shapes) -> Traffic:
    """ONNX Runtime copies the cache and reads the copy; the kernel reads and writes the cache once."""
    outputs = [shapes.bytes(v) for v in node.outputs[:3]]
    inputs = [shapes.bytes(v) for v in _operands(node)]
    if any(n is None for n in (*inputs, *outputs)):
        return Traffic(None, None, _LAUNCHES_BEFORE, 2)
    whole = sum(n for n in (*inputs, *outputs) if n is not None)
    return Traffic(whole + sum(n for n in outputs[1:] if n is not None), whole, _LAUNCHES_BEFORE, 2)

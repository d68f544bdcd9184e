"""Attention of up to sixteen new tokens behind a cache, under a mask that says which keys each of them reads.

    present_k = Concat(past_k, Transpose(k))    present_v = Concat(past_v, Transpose(v))
    y = MultiHeadAttention(q, repeated(present_k), repeated(present_v), mask)

or, where the cache has room for the new tokens (StaticCache of transformers),

    present_k = Transpose(ScatterND(Transpose(past_k), slots, Transpose(k)))    present_v = ...

This is how exporters write a step of a decoder, and how the rewriting leaves it (graph/rewrite/to_contrib.py): ONNX
Runtime copies the cache to add to it, once or three times, copies it again for every query head that shares a key head,
and reads the copies. The kernel reads and writes the cache once. The cache may hold codes:

    present_k = Concat(past_k, QuantizeLinear(Transpose(k)))    present_v = ...
    y = MultiHeadAttention(q, repeated(DequantizeLinear(present_k)), repeated(DequantizeLinear(present_v)), mask)

Then one new token needs no mask.

Of few keys, flash_attention was measured to be faster.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from onnxopt.costs import attention as costs
from onnxopt.costs.attention import AttentionSize
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.dims import Dims
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.attention.caches import Cached, cached
from onnxopt.program.attention import (
    ANY_NUMBER,
    CODES,
    MAX_TOKENS,
    SCALES,
    STORED,
    CacheCodes,
    TokenAttention,
    why_heads_do_not_fit,
)

OPERATOR = ("com.microsoft", "MultiHeadAttention")
_MASK = 5  # position among the inputs
_CACHES = 5  # inputs of a region, up to the caches
_ATTRIBUTES = {"num_heads", "scale", "unidirectional", "mask_filter_value"}


@dataclasses.dataclass(frozen=True)
class _Match:
    """One attention with its nodes, MultiHeadAttention the last."""

    meaning: TokenAttention
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every such attention, and refusals of those behind a cache that ONNX Runtime goes on to run."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if (node.domain, node.op_type) != OPERATOR or context.is_owned(node):
            continue
        if not _is_stored(node, context.shapes) or not _follows_a_cache(node):
            continue  # flash_attention says what it thinks of these
        match = _attention(node, context.shapes)
        reason = match if isinstance(match, str) else _why_not_here(match.nodes, context)
        if isinstance(match, str) or reason:
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        nodes = tuple(sorted(match.nodes, key=context.order.__getitem__))
        moved = _traffic(match, context.shapes)
        region = Region(nodes, match.inputs, match.outputs, moved, kind, match.meaning)
        region.verify()
        regions.append(region)
        context.take([nodes])
    return regions, refusals


def _why_not_here(nodes: tuple[ir.Node, ...], context: Context) -> str:
    """Why these nodes are no region of this graph, or ""."""
    if any(node not in context.order for node in nodes):
        return "The cache is written outside of the branch or loop that attends to it"
    if any(map(context.is_owned, nodes)):
        return "Another attention reads the same cache, and its kernel writes it"
    if context.makes_cycle(nodes):
        return "The mask or the new tokens depend on what is written to the cache"
    return ""


def lower(region: Region, shapes: Shapes) -> TokenAttention:
    """The meaning of a region of `find`."""
    match = _attention(region.nodes[-1], shapes)
    if isinstance(match, str):
        raise ValueError(f"`{region.nodes[-1].name}` is no attention with a cache: {match}")
    return match.meaning


def _is_stored(node: ir.Node, shapes: Shapes) -> bool:
    dtype = shapes.dtype(node.inputs[0]) if node.inputs[0] is not None else None
    return dtype is not None and dtype.name in STORED


def _follows_a_cache(node: ir.Node) -> bool:
    if len(node.inputs) < 3:
        return False
    keys, values = map(cached, node.inputs[1:3])
    return keys is not None and values is not None and (_mask(node) is not None or keys.coding is not None)


def _mask(node: ir.Node) -> ir.Value | None:
    return node.inputs[_MASK] if len(node.inputs) > _MASK else None


def _attention(node: ir.Node, shapes: Shapes) -> _Match | str:
    """What the nodes compute, or why ONNX Runtime's kernels run them."""
    q, mask, keys, values = node.inputs[0], _mask(node), cached(node.inputs[1]), cached(node.inputs[2])
    assert q is not None and keys is not None and values is not None
    if any(v is not None for k, v in enumerate(node.inputs) if k > 2 and k != _MASK):
        return "MultiHeadAttention has inputs beside its mask, which the kernel does not support"
    if {*node.attributes} - _ATTRIBUTES or node.attributes.get_int("unidirectional") or len(node.outputs) != 1:
        return "MultiHeadAttention has attributes or outputs that the kernel does not support"
    if keys.slots is not values.slots:
        return "Keys and values go to different places of the cache"
    if (keys.coding is None) != (values.coding is None):
        return "Keys or values are quantized, and not both"
    more = (mask, keys.slots, *(c.coding.scale for c in (keys, values) if c.coding is not None))
    inputs = (q, keys.fresh, values.fresh, keys.past, values.past, *dict.fromkeys(v for v in more if v is not None))
    meaning = _meaning(node, inputs, keys, values, shapes)
    if not isinstance(meaning, str):
        meaning = _why_not_repeated(node, meaning, shapes.dims(keys.present), shapes) or meaning
    if isinstance(meaning, str):
        return meaning
    nodes = (*dict.fromkeys((*keys.nodes, *values.nodes)), node)
    outputs = (node.outputs[0], keys.present, values.present)
    if len(set(inputs)) != len(inputs) or len(set(outputs)) != len(outputs):
        return "Keys and values are the same tensor"
    inside = {v for n in nodes for v in n.outputs} - set(outputs)
    if reader := _read_elsewhere(inside, set(nodes)):
        return f"`{reader}` inside the attention is read elsewhere too"
    if not all(v.is_graph_output() or any(u.node not in nodes for u in v.uses()) for v in outputs):
        return "The keys and values after the cache are not read again"
    return _Match(meaning, nodes, inputs, outputs)


def _meaning(
    node: ir.Node, inputs: tuple[ir.Value, ...], keys: Cached, values: Cached, shapes: Shapes
) -> TokenAttention | str:
    """The attention of these inputs, or why the kernel does not run it."""
    codes = _codes(inputs, keys, values, shapes)
    if isinstance(codes, str):
        return codes
    mask, dtype = _mask(node), shapes.dtype(inputs[0])
    same = [*inputs[: 3 if codes is not None else _CACHES], *([] if mask is None else [mask])]
    all_dims = [shapes.dims(v) for v in (*inputs[:_CACHES], *([] if mask is None else [mask]))]
    if dtype is None or any(shapes.dtype(v) != dtype for v in same):
        return "The operands of the attention are not known to have one dtype"
    if any(dims is None for dims in all_dims):
        return "The shapes of the attention's operands are not known"
    q, k, v, past_k, past_v, *masks = (dims for dims in all_dims if dims is not None)
    expected = shapes.expected.of(q[1]) if len(q) == 3 and isinstance(q[1], str) else None
    if len(q) != 3 or not 1 <= (q[1] if isinstance(q[1], int) else expected or 0) <= MAX_TOKENS:
        return (
            f"The number of new tokens is not known to be {MAX_TOKENS} or less; where it is in most runs, `--shape`"
            " can say so"
        )
    if not all(len(dims) == 4 for dims in (k, v, past_k, past_v, *masks)) or k != v or past_k != past_v:
        return "The shapes of keys and values are not known to be the same"
    if expected is not None and keys.slots is not None:
        return "The number of new tokens in a cache with room is not known"
    tokens, groups, width = k[1], k[2], k[3]
    heads = node.attributes.get_int("num_heads") or 0
    if not isinstance(groups, int) or not isinstance(width, int) or tokens != q[1] or q[2] != heads * width:
        return "The number of heads, or their size, is unknown"
    if past_k[0] != q[0] or k[0] != q[0] or past_k[1] != groups or past_k[3] != width:
        return "The cache and the new tokens differ in more than their number"
    if any(m[0] not in (1, q[0]) or m[1] not in (1, heads) or m[2] != tokens for m in masks):
        return f"The mask `{node.inputs[_MASK].name}` is not known to broadcast to the scores"  # type: ignore[union-attr]
    if keys.slots is not None and (mask is None or shapes.dims(keys.slots) != (tokens, 1)):
        return f"`{keys.slots.name}` is not known to have a place in the cache for each new token"
    if mask is None and tokens != 1:
        return "There is more than one new token, and no mask says which keys it reads"
    if reason := why_heads_do_not_fit(heads, groups, width, dtype.name):
        return reason
    number = tokens if isinstance(tokens, int) else ANY_NUMBER
    if reason := _why_it_may_not_pay(number or expected or 0, past_k[2], width, codes is not None, keys.slots):
        return reason
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(width)
    positions = {"k": 1, "v": 2, "past_k": 3, "past_v": 4}
    positions |= {n: inputs.index(v) for n, v in (("mask", mask), ("slots", keys.slots)) if v is not None}
    stored = tuple(d.name for d in map(shapes.dtype, inputs) if d is not None)
    outputs = (dtype.name, stored[3], stored[4])
    return TokenAttention(stored, outputs, heads, groups, width, scale, tokens=number, **positions, codes=codes)


def _codes(inputs: tuple[ir.Value, ...], keys: Cached, values: Cached, shapes: Shapes) -> CacheCodes | str | None:
    """How the cache is coded, None where it is not; a reason where the kernel does not read such codes."""
    if keys.coding is None or values.coding is None:
        return None
    stored = [shapes.dtype(c.past) for c in (keys, values)]
    if stored[0] != stored[1] or stored[0] is None or stored[0].name not in CODES:
        return f"The kernel reads caches of {' and '.join(CODES)}, and this one holds another dtype"
    scales = [shapes.dtype(c.scale) for c in (keys.coding, values.coding)]
    if scales[0] != scales[1] or scales[0] is None or scales[0].name not in SCALES:
        return "The scales of keys and values are not known to have one float dtype"
    k, v = (inputs.index(c.scale) for c in (keys.coding, values.coding))
    return CacheCodes(k, v, keys.coding.per, values.coding.per)


def _why_not_repeated(node: ir.Node, meaning: TokenAttention, present: Dims | None, shapes: Shapes) -> str:
    """Why the operator may not read each head of the cache for all heads of its group, or "". present: (B, M, T, H)."""
    mask_node = _mask(node)
    mask = shapes.dims(mask_node) if mask_node is not None else None
    if present is None or (mask_node is not None and (mask is None or mask[3] != present[2])):
        return "The mask and the keys are not known to have the same number"
    whole = (present[0], present[2], meaning.heads * meaning.width)
    for value in node.inputs[1:3]:
        dims = shapes.dims(value) if value is not None else None
        if dims != whole and (dims != present or meaning.heads != meaning.groups):
            return "Keys and values are not known to be repeated for the heads of their groups"
    return ""


def _why_it_may_not_pay(tokens: int, past: object, width: int, has_codes: bool, slots: ir.Value | None) -> str:
    """Why the kernel may not be faster. has_codes: of a cache that no other kernel reads."""
    keys = past + tokens * (slots is None) if isinstance(past, int) else None
    if has_codes:
        return ""
    if costs.pays(AttentionSize(keys, width, queries=tokens)):
        return f"The kernel of attention to few keys is faster for {keys} of them"
    return ""


def _read_elsewhere(inside: set[ir.Value], nodes: set[ir.Node]) -> str:
    """The name of a value that a node outside reads, or the caller of the model; "" where there is none."""
    read = (v for v in inside if v.is_graph_output() or any(use.node not in nodes for use in v.uses()))
    return next((v.name or "" for v in read), "")


def _traffic(match: _Match, shapes: Shapes) -> Traffic:
    """Every node reads and writes what the kernel reads and writes once."""
    launches = sum(node.op_type not in ("Reshape", "Unsqueeze") for node in match.nodes)
    sizes = [shapes.bytes(v) for v in (*match.inputs, *match.outputs)]
    inside = [shapes.bytes(v) for n in match.nodes[:-1] for v in n.outputs if n.op_type not in ("Reshape", "Unsqueeze")]
    if any(n is None for n in (*sizes, *inside)):
        return Traffic(None, None, launches, 2)
    whole = sum(n for n in sizes if n is not None)
    return Traffic(whole + 2 * sum(n for n in inside if n is not None), whole, launches, 2)

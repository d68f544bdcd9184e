"""Attention of up to sixteen new tokens behind a cache, under a mask that says which keys each of them reads.

    present_k = Concat(past_k, Transpose(k))    present_v = Concat(past_v, Transpose(v))
    y = MultiHeadAttention(q, repeated(present_k), repeated(present_v), mask)

or, where the cache has room for the new tokens (StaticCache of transformers),

    present_k = Transpose(ScatterND(Transpose(past_k), slots, Transpose(k)))    present_v = ...

This is how exporters write a step of a decoder, and how the rewriting leaves it (graph/rewrite/to_contrib.py): ONNX
Runtime copies the cache to add to it, once or three times, copies it again for every query head that shares a key head,
and reads the copies. The kernel reads and writes the cache once.

Of few keys, flash_attention was measured to be faster.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.dims import Dims
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program import flash_attention
from onnxopt.program.attention import (
    ANY_NUMBER,
    MOST_TOKENS,
    SLOTS,
    STORED,
    TokenAttention,
    why_heads_do_not_fit,
)

OPERATOR = ("com.microsoft", "MultiHeadAttention")
_MASK = 5  # position among the inputs
_SLOTS = 6  # position among the inputs of a region
_SWAPPED = (0, 2, 1, 3)
_TOKENS_FIRST, _TOKENS_BACK, _TOKENS_BEFORE_BATCH = (2, 0, 1, 3), (1, 2, 0, 3), (1, 0, 2, 3)
# Of the nodes from a cache to the attention. Each Reshape joins dims; the last dims show which.
_FORMS = re.compile("(Concat|ScatterND Transpose)( Transpose( Unsqueeze Expand)?( Reshape)+)?")
_ATTRIBUTES = {"num_heads", "scale", "unidirectional", "mask_filter_value"}


class _Cached(NamedTuple):
    """Keys or values: a cache and what is added to it. nodes: from what is added to the operator's input.

    fresh: (B, S, groups, H). slots: where that goes, (S, 1); None for behind the cache.
    """

    nodes: tuple[ir.Node, ...]
    past: ir.Value
    fresh: ir.Value
    present: ir.Value
    slots: ir.Value | None = None


@dataclasses.dataclass(frozen=True)
class _Found:
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
        if (node.domain, node.op_type) != OPERATOR or context.is_taken(node):
            continue
        if not _is_stored(node, context.shapes) or not _is_behind_a_cache(node):
            continue  # flash_attention says what it thinks of these
        found = _attention(node, context.shapes)
        reason = found if isinstance(found, str) else _why_not_here(found.nodes, context)
        if isinstance(found, str) or reason:
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        nodes = tuple(sorted(found.nodes, key=context.order.__getitem__))
        moved = _traffic(found, context.shapes)
        region = Region(nodes, found.inputs, found.outputs, moved, kind, found.meaning)
        region.verify()
        regions.append(region)
        context.take([nodes])
    return regions, refusals


def _why_not_here(nodes: tuple[ir.Node, ...], context: Context) -> str:
    """Why these nodes are no region of this graph, or ""."""
    if any(node not in context.order for node in nodes):
        return "The cache is written outside of the branch or loop that attends to it"
    if any(map(context.is_taken, nodes)):
        return "Another attention reads the same cache, and its kernel writes it"
    if context.makes_cycle(nodes):
        return "The mask or the new tokens depend on what is written to the cache"
    return ""


def lower(region: Region, shapes: Shapes) -> TokenAttention:
    """The meaning of a region of `find`."""
    found = _attention(region.nodes[-1], shapes)
    if isinstance(found, str):
        raise ValueError(f"`{region.nodes[-1].name}` is no attention behind a cache: {found}")
    return found.meaning


def _is_stored(node: ir.Node, shapes: Shapes) -> bool:
    dtype = shapes.dtype(node.inputs[0]) if node.inputs[0] is not None else None
    return dtype is not None and dtype.name in STORED


def _is_behind_a_cache(node: ir.Node) -> bool:
    return len(node.inputs) > _MASK and _cached(node.inputs[1]) is not None and _cached(node.inputs[2]) is not None


def _attention(node: ir.Node, shapes: Shapes) -> _Found | str:
    """What the nodes compute, or why ONNX Runtime's kernels run them."""
    q, mask, keys, values = node.inputs[0], node.inputs[_MASK], _cached(node.inputs[1]), _cached(node.inputs[2])
    assert q is not None and keys is not None and values is not None
    if any(v is not None for k, v in enumerate(node.inputs) if k > 2 and k != _MASK) or mask is None:
        return "MultiHeadAttention has no mask, or inputs beside it, which the kernel does not support"
    if {*node.attributes} - _ATTRIBUTES or node.attributes.get_int("unidirectional") or len(node.outputs) != 1:
        return "MultiHeadAttention has attributes or outputs that the kernel does not support"
    if keys.slots is not values.slots:
        return "Keys and values go to different places of the cache"
    slots = () if keys.slots is None else (keys.slots,)
    inputs = (q, keys.fresh, values.fresh, keys.past, values.past, mask, *slots)
    meaning = _meaning(node, inputs, shapes)
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
        return "The keys and values behind the cache are not read again"
    return _Found(meaning, nodes, inputs, outputs)


def _meaning(node: ir.Node, inputs: tuple[ir.Value, ...], shapes: Shapes) -> TokenAttention | str:
    """The attention of these inputs, or why the kernel does not run it."""
    slots, inputs = inputs[_SLOTS:], inputs[:_SLOTS]
    dtype, known = shapes.dtype(inputs[0]), [shapes.dims(v) for v in inputs]
    if dtype is None or any(shapes.dtype(v) != dtype for v in inputs):
        return "The operands of the attention are not known to have one dtype"
    if any(dims is None for dims in known):
        return "The shapes of the attention's operands are not known"
    q, k, v, past_k, past_v, mask = (dims for dims in known if dims is not None)
    expected = shapes.expected.of(q[1]) if len(q) == 3 and isinstance(q[1], str) else None
    if len(q) != 3 or not 1 <= (q[1] if isinstance(q[1], int) else expected or 0) <= MOST_TOKENS:
        return (
            f"The number of new tokens is not known to be {MOST_TOKENS} or less; where it is in most runs, `--shape`"
            " can say so"
        )
    if not all(len(dims) == 4 for dims in (k, v, past_k, past_v, mask)) or k != v or past_k != past_v:
        return "The shapes of keys and values are not known to be the same"
    if expected is not None and slots:
        return "The number of new tokens in a cache with room is not known"
    tokens, groups, width = k[1], k[2], k[3]
    heads = node.attributes.get_int("num_heads") or 0
    if not isinstance(groups, int) or not isinstance(width, int) or tokens != q[1] or q[2] != heads * width:
        return "The number of heads, or their size, is unknown"
    if past_k[0] != q[0] or k[0] != q[0] or past_k[1] != groups or past_k[3] != width:
        return "The cache and the new tokens differ in more than their number"
    if mask[0] not in (1, q[0]) or mask[1] not in (1, heads) or mask[2] != tokens:
        return f"The mask `{inputs[5].name}` is not known to broadcast to the scores"
    if any(shapes.dims(v) != (tokens, 1) for v in slots):
        return f"`{slots[0].name}` is not known to have a place in the cache for each new token"
    if reason := why_heads_do_not_fit(heads, groups, width, dtype.name):
        return reason
    number = tokens if isinstance(tokens, int) else ANY_NUMBER
    if reason := _why_it_may_not_pay(number or expected or 0, heads // groups, past_k[2], width, bool(slots)):
        return reason
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(width)
    stored, positions = (dtype.name,) * _SLOTS, {"k": 1, "v": 2, "past_k": 3, "past_v": 4, "mask": _SLOTS - 1}
    if slots:
        stored, positions = (*stored, SLOTS), {**positions, "slots": _SLOTS}
    return TokenAttention(stored, (dtype.name,) * 3, heads, groups, width, scale, tokens=number, **positions)


def _why_not_repeated(node: ir.Node, meaning: TokenAttention, present: Dims | None, shapes: Shapes) -> str:
    """Why the operator may not read each head of the cache for all heads of its group, or "". present: (B, M, T, H)."""
    mask = shapes.dims(node.inputs[_MASK])  # type: ignore[arg-type]  # there is one
    if present is None or mask is None or mask[3] != present[2]:
        return "The mask and the keys are not known to have the same number"
    whole = (present[0], present[2], meaning.heads * meaning.width)
    for value in node.inputs[1:3]:
        dims = shapes.dims(value) if value is not None else None
        if dims != whole and (dims != present or meaning.heads != meaning.groups):
            return "Keys and values are not known to be repeated for the heads of their groups"
    return ""


def _why_it_may_not_pay(tokens: int, heads: int, past: object, width: int, has_slots: bool) -> str:
    """Why the kernel may not be faster. heads: that share keys."""
    keys = past + tokens * (not has_slots) if isinstance(past, int) else None
    if flash_attention.pays(keys, width, packed=False):
        return f"The kernel of attention to few keys is faster for {keys} of them"
    return ""


def _cached(value: ir.Value | None) -> _Cached | None:
    """Keys or values of a cache with new tokens, as (B, N, T, H) or, repeated for their groups, as (B, T, N H)."""
    nodes: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        nodes.insert(0, node)
        if node.op_type in ("Concat", "ScatterND"):
            break
        value = node.inputs[0]
    if not nodes or not _FORMS.fullmatch(" ".join(node.op_type for node in nodes)):
        return None
    appended = nodes[0].op_type == "Concat"
    found = _appended(nodes[0]) if appended else _scattered(nodes[0], nodes[1])
    rest = nodes[1 if appended else 2 :]
    return None if found is None or not all(map(_is_usual, rest)) else found._replace(nodes=(*found.nodes, *rest))


def _appended(concat: ir.Node) -> _Cached | None:
    """Concat(past, Transpose(fresh))."""
    if len(concat.inputs) != 2 or concat.attributes.get_int("axis") not in (2, -2):
        return None
    past, turn = concat.inputs[0], _transpose(concat.inputs[1], _SWAPPED)
    if past is None or turn is None or turn.inputs[0] is None:
        return None
    return _Cached((turn, concat), past, turn.inputs[0], concat.outputs[0])


def _scattered(scatter: ir.Node, turned: ir.Node) -> _Cached | None:
    """Transpose(ScatterND(Transpose(past), slots, Transpose(fresh))), of which the tokens come first in between."""
    first, fresh = _transpose(scatter.inputs[0], _TOKENS_FIRST), _transpose(scatter.inputs[2], _TOKENS_BEFORE_BATCH)
    if first is None or fresh is None or _transpose(turned.outputs[0], _TOKENS_BACK) is None:
        return None
    past, slots, new = first.inputs[0], scatter.inputs[1], fresh.inputs[0]
    if past is None or slots is None or new is None or scatter.attributes.get_string("reduction", "none") != "none":
        return None
    return _Cached((first, fresh, scatter, turned), past, new, turned.outputs[0], slots)


def _transpose(value: ir.Value | None, perm: tuple[int, ...]) -> ir.Node | None:
    """The Transpose with this permutation that makes a value."""
    node = value.producer() if value is not None else None
    if node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return None
    return node if node.attributes.get_ints("perm") == perm else None


def _is_usual(node: ir.Node) -> bool:
    """Whether a node has the attributes and constants that `_repeat` and `flat` of to_contrib.py give it."""
    if node.op_type == "Transpose":
        return node.attributes.get_ints("perm") == _SWAPPED
    if node.op_type == "Unsqueeze":
        return _ints(node.inputs[1]) == [3]
    if node.op_type == "Expand":
        shape = _ints(node.inputs[1])
        return shape is not None and len(shape) == 5 and shape[:3] == [1, 1, 1] and shape[4] == 1
    return node.op_type == "Reshape"


def _ints(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant of integers."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return [int(n) for n in np.ravel(value.const_value.numpy())]


def _read_elsewhere(inside: set[ir.Value], nodes: set[ir.Node]) -> str:
    """The name of a value that a node outside reads, or the caller of the model; "" where there is none."""
    read = (v for v in inside if v.is_graph_output() or any(use.node not in nodes for use in v.uses()))
    return next((v.name or "" for v in read), "")


def _traffic(found: _Found, shapes: Shapes) -> Traffic:
    """Every node reads and writes what the kernel reads and writes once."""
    launches = sum(node.op_type not in ("Reshape", "Unsqueeze") for node in found.nodes)
    given = [shapes.bytes(v) for v in (*found.inputs, *found.outputs)]
    inside = [shapes.bytes(v) for n in found.nodes[:-1] for v in n.outputs if n.op_type not in ("Reshape", "Unsqueeze")]
    if any(n is None for n in (*given, *inside)):
        return Traffic(None, None, launches, 2)
    whole = sum(n for n in given if n is not None)
    return Traffic(whole + 2 * sum(n for n in inside if n is not None), whole, launches, 2)

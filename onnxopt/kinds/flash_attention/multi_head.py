"""MultiHeadAttention as one kernel, with what stands in front of it and costs nothing in the kernel.

x [B, S, W] -> views and cuts -> MultiHeadAttention(q, k, v, Tile(bias) | Expand(bias) | mask of local attention)
"""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx_ir as ir

from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention import hidden_rows, local_mask, operands
from onnxopt.kinds.flash_attention.attention import Attention, Scores, attention_of
from onnxopt.kinds.flash_attention.operands import Operand
from onnxopt.kinds.flash_attention.views import BY_HEAD, integers

OPERATOR = (CONTRIB, "MultiHeadAttention")
_BIAS = 5  # position among the inputs
_SUPPORTED = frozenset({0, 1, 2, _BIAS})


def attention(node: ir.Node, shapes: Shapes) -> Attention | str:
    """The attention of a MultiHeadAttention, or the reason why no kernel of this kind can run it."""
    unsupported = [k for k, v in enumerate(node.inputs) if v is not None and k not in _SUPPORTED]
    if unsupported or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "MultiHeadAttention has inputs or outputs that the kernel does not support"
    heads = node.attributes.get_int("num_heads", 0) or 0
    q, k, v = (*node.inputs, None, None)[:3]
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    if q is None:
        return "MultiHeadAttention has no q"
    if bias is not None and len(shapes.dims(bias) or ()) != 4:
        return f"The rank of the bias `{bias.name}` is not 4"
    before, after = None, 0 if node.attributes.get_int("unidirectional", 0) else None
    q, zeroed = hidden_rows.unzeroed(q, _masks(bias), node)
    readers = (*zeroed, node)
    window = (
        local_mask.window_of(bias, readers, (q, 1), (k, 2 if len(shapes.dims(k) or ()) == 4 else 1))
        if bias is not None and k is not None and after is None
        else None
    )
    added: tuple[ir.Node, ...] = ()
    if window is not None:
        added, before, after, bias = window.nodes, window.before, window.after, window.rest
    elif bias is not None and (added := _tile(bias, q, readers, shapes) or _expand(bias, q, readers, shapes)):
        bias = added[-1].inputs[0]
    if k is None and v is None:
        read: operands.Operands | str | None = operands.packed(q, heads, shapes)
    elif k is None or v is None:
        read = None
    else:
        separate = [Operand(name, x, BY_HEAD) for name, x in zip("qkv", (q, k, v), strict=True)]
        read = "q has four dims" if len(shapes.dims(q) or ()) == 4 else None
        read = read or operands.apart(separate, heads, (*added, *readers), shapes)
    if read is None:
        return "q holds keys and values too, in an order that the kernel does not support"
    if isinstance(read, str):
        return read
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(max(read.width, 1))
    hidden = hidden_rows.weights(bias, window, bool(zeroed))
    scores = Scores(scale, bias, before=before, after=after, hidden=hidden)
    return attention_of(node, (*read.nodes, *added, *readers), read, heads, scores, shapes, alone=False)


def _masks(bias: ir.Value | None) -> tuple[ir.Value | None, ...]:
    """A bias, and what an Expand repeats to make it."""
    node = None if bias is None else bias.producer()
    return (bias, node.inputs[0]) if node is not None and node.op_type == "Expand" else (bias,)


def _tile(bias: ir.Value, q: ir.Value, readers: Collection[ir.Node], shapes: Shapes) -> tuple[ir.Node, ...]:
    """The Tile that repeats a bias along the batch, for this attention alone, and what counts how often; else none."""
    node = bias.producer()
    if node is None or node.op_type != "Tile" or node.domain != "" or bias.is_graph_output():
        return ()
    source, repeats = node.inputs
    if any(user not in readers for user in bias.consumers()) or source is None or len(shapes.dims(source) or ()) != 4:
        return ()
    counts = integers(repeats)
    if counts is not None:
        return (node,) if counts[1:] == [1, 1, 1] else ()
    count = _count(repeats, q, source)
    return (*count, node) if count else ()


def _expand(bias: ir.Value, q: ir.Value, readers: Collection[ir.Node], shapes: Shapes) -> tuple[ir.Node, ...]:
    """The Expand that repeats a bias for queries, heads and sequences, for this attention alone, and what counts its
    queries; else none."""
    node = bias.producer()
    if node is None or (node.domain, node.op_type) != ("", "Expand") or bias.is_graph_output():
        return ()
    source, sizes = node.inputs
    dims, expanded = (shapes.dims(v) if v is not None else None for v in (source, bias))
    if any(user not in readers for user in bias.consumers()) or dims is None or expanded is None:
        return ()
    if len(dims) != 4 or dims[3] != expanded[3] or any(a not in (1, b) for a, b in zip(dims, expanded, strict=True)):
        return ()
    if integers(sizes) is not None:
        return (node,)
    count = _count_of_queries(sizes, q)
    return (*count, node) if count else ()


def _read_once(node: ir.Node) -> bool:
    return len(node.outputs[0].uses()) == 1 and not node.outputs[0].is_graph_output()


def _count_of_queries(sizes: ir.Value | None, q: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes of Concat([1, 1], Shape(q) of the queries, [1]) and no others."""
    concat = None if sizes is None else sizes.producer()
    if concat is None or concat.op_type != "Concat" or len(concat.inputs) != 3:
        return ()
    count = None if concat.inputs[1] is None else concat.inputs[1].producer()
    if [integers(v) for v in concat.inputs[::2]] != [[1, 1], [1]] or count is None or count.op_type != "Shape":
        return ()
    counts_queries = (count.attributes.get_int("start", 0), count.attributes.get_int("end", 0)) == (1, 2)
    alone = _read_once(concat) and _read_once(count)
    return (count, concat) if counts_queries and alone and count.inputs[0] is q else ()


def _count(repeats: ir.Value | None, q: ir.Value, masks: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes of Concat(Div(Shape(q) of the batch, windows), [1, 1, 1]) and no others.

    The windows are a constant, or Shape(masks) of the batch.
    """
    concat = None if repeats is None else repeats.producer()
    if concat is None or concat.op_type != "Concat" or len(concat.inputs) != 2:
        return ()
    images = None if concat.inputs[0] is None else concat.inputs[0].producer()
    if integers(concat.inputs[1]) != [1, 1, 1] or images is None or images.op_type != "Div":
        return ()
    count, windows = (None if v is None else v.producer() for v in images.inputs)
    if not _is_batch_of(count, q) or count is None:
        return ()
    nodes = (count, *([windows] if windows is not None and _is_batch_of(windows, masks) else []), images, concat)
    alone = all(map(_read_once, nodes))
    return nodes if alone and (len(nodes) == 4 or len(integers(images.inputs[1]) or ()) == 1) else ()


def _is_batch_of(node: ir.Node | None, value: ir.Value) -> bool:
    """Whether a node is the Shape of the first axis of a value."""
    if node is None or (node.domain, node.op_type) != ("", "Shape") or node.inputs[0] is not value:
        return False
    return (node.attributes.get_int("start", 0), node.attributes.get_int("end", 0)) == (0, 1)

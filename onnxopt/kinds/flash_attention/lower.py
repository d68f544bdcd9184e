"""Attention of many queries in the graph, and what its nodes mean.

    x [B, S, W] -> views and cuts -> MultiHeadAttention(q, k, v, Tile(bias))

The nodes in front cost nothing in the kernel, which reads parts of tokens where they lie (views.py). Nor does a Tile of
a bias along the batch.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.kinds.flash_attention.views import Parts, integers, parts_of, read_by_others
from onnxopt.program.flash_attention import STORED, FlashAttention, Heads, why_not

OPERATOR = (CONTRIB, "MultiHeadAttention")
_BIAS = 5  # position among the inputs
_SUPPORTED = frozenset({0, 1, 2, _BIAS})
_PACKED = 3  # q, k and v in a tensor [B, S, heads, 3, width]


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention and what it reads. nodes: in no order. inputs: of the kernel."""

    node: ir.Node
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    meaning: FlashAttention

    @property
    def shares_tensors(self) -> bool:
        """Whether two of q, k and v lie in one tensor, so that they would be copied out of it."""
        return len({heads.input for heads, *_ in self.meaning.operands}) < len(self.meaning.operands)


def attention(node: ir.Node, shapes: Shapes) -> Attention | str:
    """The attention of a MultiHeadAttention, or the reason why no kernel of this kind can run it."""
    unsupported = [k for k, v in enumerate(node.inputs) if v is not None and k not in _SUPPORTED]
    if unsupported or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "MultiHeadAttention has inputs or outputs that the kernel does not support"
    q = node.inputs[0]
    dtype = None if q is None else shapes.dtype(q)
    if q is None or dtype is None or dtype.name not in STORED:
        of = dtype.name if dtype else "unknown"
        return f"The kernel supports {' and '.join(STORED)}; q has dtype {of}"
    if any(v is not None and shapes.dtype(v) != dtype for v in node.inputs):
        return f"The inputs of MultiHeadAttention do not all have dtype {dtype.name}"
    heads = node.attributes.get_int("num_heads", 0) or 0
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    if bias is not None and len(shapes.dims(bias) or ()) != 4:
        return f"The rank of the bias `{bias.name}` is not 4"
    tile = () if bias is None else _tile(bias, node, shapes)
    read = _packed(node, heads, shapes) or _apart(node, heads, tile, shapes)
    if isinstance(read, str):
        return read
    operands, inputs, before, width, values = read
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(max(width, 1))
    if reason := why_not(heads, heads, width, values, scale):
        return reason
    if tile:
        bias = tile[-1].inputs[0]
    if bias is not None and bias not in inputs:
        inputs = (*inputs, bias)
    meaning = FlashAttention(
        (dtype.name,) * len(inputs), (dtype.name,), heads, heads, width, values, scale,
        bool(node.attributes.get_int("unidirectional", 0)), q=operands[0], k=operands[1], v=operands[2],
        bias=None if bias is None else inputs.index(bias),
    )  # fmt: skip
    try:
        meaning.verify()
    except ValueError as error:
        return f"MultiHeadAttention cannot be one kernel: {error}"
    return Attention(node, (*before, *tile, node), inputs, meaning)


def _tile(bias: ir.Value, reader: ir.Node, shapes: Shapes) -> tuple[ir.Node, ...]:
    """The Tile that repeats a bias along the batch, for this attention alone, and what counts how often; else none."""
    node = bias.producer()
    if node is None or node.op_type != "Tile" or node.domain != "" or bias.is_graph_output():
        return ()
    source, repeats = node.inputs
    if any(user is not reader for user in bias.consumers()) or source is None or len(shapes.dims(source) or ()) != 4:
        return ()
    known = integers(repeats)
    if known is not None:
        return (node,) if known[1:] == [1, 1, 1] else ()
    count = _count(repeats, reader)
    return (*count, node) if count else ()


def _count(repeats: ir.Value | None, reader: ir.Node) -> tuple[ir.Node, ...]:
    """The nodes of Concat(Div(Shape(q) of the batch, windows), [1, 1, 1]) with q of `reader`, and no others."""
    joined = None if repeats is None else repeats.producer()
    if joined is None or joined.op_type != "Concat" or len(joined.inputs) != 2:
        return ()
    images = None if joined.inputs[0] is None else joined.inputs[0].producer()
    if integers(joined.inputs[1]) != [1, 1, 1] or images is None or images.op_type != "Div":
        return ()
    count = None if images.inputs[0] is None else images.inputs[0].producer()
    if count is None or count.op_type != "Shape" or count.inputs[0] is not reader.inputs[0]:
        return ()
    of_batch = (count.attributes.get_int("start", 0), count.attributes.get_int("end", 0)) == (0, 1)
    alone = all(len(n.outputs[0].uses()) == 1 and not n.outputs[0].is_graph_output() for n in (joined, images, count))
    return (count, images, joined) if of_batch and alone and len(integers(images.inputs[1]) or ()) == 1 else ()


_Read = tuple[tuple[Heads, ...], tuple[ir.Value, ...], tuple[ir.Node, ...], int, int]


def _packed(node: ir.Node, heads: int, shapes: Shapes) -> _Read | None:
    """q, k and v in one tensor [B, S, heads, 3, width]."""
    q = node.inputs[0]
    assert q is not None
    dims = shapes.dims(q)
    others = [v for v in node.inputs[1:3] if v is not None]
    if others or dims is None or len(dims) != 5 or dims[2] != heads or dims[3] != _PACKED:
        return None
    width = dims[4]
    if not isinstance(width, int):
        return None
    operands = tuple(Heads(0, _PACKED * heads * width, k * width, _PACKED * width) for k in range(_PACKED))
    return operands, (q,), (), width, width


def _apart(node: ir.Node, heads: int, tile: tuple[ir.Node, ...], shapes: Shapes) -> _Read | str:
    """q [B, S, heads * width], k and v the same or [B, heads, T, width], or parts of other tensors."""
    parts = _parts(node, heads, tile, shapes)
    sources, widths = list[ir.Value](), []
    places = list[tuple[ir.Value, Heads]]()
    for name, value in zip("qkv", (*node.inputs, None, None)[:3], strict=True):
        dims = None if value is None else shapes.dims(value)
        if value is None or dims is None or len(dims) not in (3, 4) or (name == "q" and len(dims) == 4):
            return f"The shape of {name} is unknown, or the kernel does not support it"
        width = _width(dims, heads)
        if width is None:
            return f"The size of a head of {name} is unknown"
        found = parts.get(value)
        if found is not None:
            places.append((found.source, Heads(0, found.row, found.first, found.step)))
        else:
            places.append((value, Heads(0, heads * width, 0, width) if len(dims) == 3 else Heads(0)))
        sources.append(places[-1][0])
        widths.append(width)
    if widths[0] != widths[1]:
        return "The heads of q and k differ in size"
    inputs = tuple(dict.fromkeys(sources))
    operands = tuple(dataclasses.replace(place, input=inputs.index(source)) for source, place in places)
    before = tuple(dict.fromkeys(n for found in parts.values() for n in found.nodes))
    return operands, inputs, before, widths[0], widths[2]


def _width(dims: Dims, heads: int) -> int | None:
    """Elements of a head; None where they are not known."""
    if len(dims) == 4:
        return dims[3] if dims[1] == heads and isinstance(dims[3], int) else None
    return dims[2] // heads if heads and isinstance(dims[2], int) and dims[2] % heads == 0 else None


def _parts(node: ir.Node, heads: int, tile: tuple[ir.Node, ...], shapes: Shapes) -> dict[ir.Value, Parts]:
    """Where q, k and v lie in other tensors, as far as nothing else reads what is on the way but the nodes `tile`."""
    values = [v for v in node.inputs[:3] if v is not None]
    stop: frozenset[ir.Node] = frozenset()
    while True:
        found = {v: parts for v in values if (parts := parts_of(v, heads, stop, shapes)) is not None}
        further = read_by_others([n for parts in found.values() for n in parts.nodes], (*tile, node))
        if not further:
            return found
        stop |= further


Lengths = tuple[int | str | None, int | str | None]


def lengths(node: ir.Node, shapes: Shapes) -> Lengths:
    """The numbers of queries and keys of a MultiHeadAttention, or their symbols, as far as they are known."""
    q, k = (*node.inputs, None)[:2]
    of_q = (None if q is None else shapes.dims(q)) or (None, None)
    if k is None:
        return of_q[1], of_q[1]
    of_k = shapes.dims(k)
    if of_k is None:
        return of_q[1], None
    return of_q[1], of_k[2] if len(of_k) == 4 else of_k[1]

"""Attention of many queries in the graph, and what its nodes mean.

    Split | Slice of x [B, S, W] -> MultiHeadAttention(q, k, v, Tile(bias))

The Split or the Slices cost nothing in the kernel, which reads parts of tokens where they lie. Nor does a Tile of a bias
along the batch.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.program.flash_attention import STORED, FlashAttention, Heads, why_not

OPERATOR = (CONTRIB, "MultiHeadAttention")
_BIAS = 5  # position among the inputs
_SUPPORTED = frozenset({0, 1, 2, _BIAS})
_PACKED = 3  # q, k and v in a tensor [B, S, heads, 3, width]


@dataclasses.dataclass(frozen=True)
class Cut:
    """What q, k or v is, without the node that cuts it: elements `first` and further of tokens of `row` elements."""

    source: ir.Value
    first: int
    row: int
    node: ir.Node


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention and what it reads. nodes: in no order. inputs: of the kernel."""

    node: ir.Node
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    meaning: FlashAttention


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
    read = _packed(node, heads, shapes) or _apart(node, heads, shapes)
    if isinstance(read, str):
        return read
    operands, inputs, cuts, width, values = read
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    if bias is not None and len(shapes.dims(bias) or ()) != 4:
        return f"The rank of the bias `{bias.name}` is not 4"
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(max(width, 1))
    if reason := why_not(heads, heads, width, values, scale):
        return reason
    tile = None if bias is None else _tile(bias, node, shapes)
    if tile is not None:
        bias = tile.inputs[0]
    if bias is not None and bias not in inputs:
        inputs = (*inputs, bias)
    meaning = FlashAttention(
        (dtype.name,) * len(inputs), (dtype.name,), heads, heads, width, values, scale,
        bool(node.attributes.get_int("unidirectional", 0)), *operands, None if bias is None else inputs.index(bias),
    )  # fmt: skip
    try:
        meaning.verify()
    except ValueError as error:
        return f"MultiHeadAttention cannot be one kernel: {error}"
    before = [*(cut.node for cut in cuts), *([] if tile is None else [tile])]
    return Attention(node, (*dict.fromkeys(before), node), inputs, meaning)


def _tile(bias: ir.Value, reader: ir.Node, shapes: Shapes) -> ir.Node | None:
    """The Tile that repeats a bias along the batch, for this attention alone; None where there is none."""
    node = bias.producer()
    if node is None or node.op_type != "Tile" or node.domain != "" or bias.is_graph_output():
        return None
    source, repeats = node.inputs
    if any(user is not reader for user in bias.consumers()) or source is None or len(shapes.dims(source) or ()) != 4:
        return None
    return node if (_integers(repeats) or [0])[1:] == [1, 1, 1] else None


_Read = tuple[tuple[Heads, ...], tuple[ir.Value, ...], tuple[Cut, ...], int, int]


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


def _apart(node: ir.Node, heads: int, shapes: Shapes) -> _Read | str:
    """q [B, S, heads * width], k and v the same or [B, heads, T, width], or parts of one tensor."""
    given = node.inputs[:3]
    cuts = _cuts(node, shapes)
    operands, inputs, widths = [], dict[ir.Value, None](), []
    for name, value in zip("qkv", given, strict=False):
        dims = None if value is None else shapes.dims(value)
        if value is None or dims is None or len(dims) not in (3, 4) or (name == "q" and len(dims) == 4):
            return f"The shape of {name} is unknown, or the kernel does not support it"
        if len(dims) == 4:
            width = dims[3] if dims[1] == heads else None
        else:
            width = dims[2] // heads if heads and isinstance(dims[2], int) and dims[2] % heads == 0 else None
        if not isinstance(width, int):
            return f"The size of a head of {name} is unknown"
        cut = cuts.get(value)
        source = value if cut is None else cut.source
        inputs[source] = None
        row, first = (heads * width, 0) if cut is None else (cut.row, cut.first)
        place = Heads(list(inputs).index(source), row, first, width) if len(dims) == 3 else Heads(len(inputs) - 1)
        if len(dims) == 4:
            place = Heads(list(inputs).index(source))
        operands.append(place)
        widths.append(width)
    if len(operands) != 3 or widths[0] != widths[1]:
        return "The heads of q and k differ in size"
    return tuple(operands), tuple(inputs), tuple(dict.fromkeys(cuts.values())), widths[0], widths[2]


def _cuts(node: ir.Node, shapes: Shapes) -> dict[ir.Value, Cut]:
    """The Slices and Splits in front of an attention that nothing else reads, by what they cut off."""
    found = {v: cut for v in node.inputs[:3] if v is not None and (cut := _cut(v, shapes)) is not None}
    own = {cut.node for cut in found.values()}
    for producer in own:
        if any(reader is not node for v in producer.outputs for reader in v.consumers()) or any(
            v.is_graph_output() for v in producer.outputs
        ):
            found = {v: cut for v, cut in found.items() if cut.node is not producer}
    return found


def _cut(value: ir.Value, shapes: Shapes) -> Cut | None:
    """How a value is cut off the last dim of another one [B, S, W]; None where it is not."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.inputs and node.domain == "" else None
    dims = None if source is None else shapes.dims(source)
    part = shapes.dims(value)
    if node is None or source is None or dims is None or part is None or len(dims) != 3 or not isinstance(dims[2], int):
        return None
    if node.op_type == "Split" and node.attributes.get_int("axis", 0) in (2, -1):
        first = 0
        for output in node.outputs:
            if output is value:
                return Cut(source, first, dims[2], node)
            width = (shapes.dims(output) or (None,))[-1]
            if not isinstance(width, int):
                return None
            first += width
    if node.op_type == "Slice":
        return _slice(node, source, dims, part)
    return None


def _slice(node: ir.Node, source: ir.Value, dims: Dims, part: Dims) -> Cut | None:
    bounds = [_integers(v) for v in node.inputs[1:]]
    if len(bounds) < 3 or any(b is None or len(b) != 1 for b in bounds) or not isinstance(part[2], int):
        return None
    (start,), _, (axis,) = bounds[0], bounds[1], bounds[2]  # type: ignore[misc]
    (step,) = bounds[3] if len(bounds) > 3 else (1,)  # type: ignore[misc]
    width = dims[2]
    if axis not in (2, -1) or step != 1 or not isinstance(width, int):
        return None
    first = min(max(start + width if start < 0 else start, 0), width)
    return Cut(source, first, width, node) if part[2] >= 1 else None


def _integers(value: ir.Value | None) -> list[int] | None:
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return [int(n) for n in value.const_value.numpy().reshape(-1)]


def lengths(node: ir.Node, shapes: Shapes) -> tuple[object, object]:
    """The numbers of queries and keys of a MultiHeadAttention, as far as they are known."""
    q, k = (*node.inputs, None)[:2]
    of_q = (None if q is None else shapes.dims(q)) or (None, None)
    if k is None:
        return of_q[1], of_q[1]
    of_k = shapes.dims(k)
    if of_k is None:
        return of_q[1], None
    return of_q[1], of_k[2] if len(of_k) == 4 else of_k[1]

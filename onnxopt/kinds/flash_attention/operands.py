"""Where the kernel reads queries, keys and values: the tensors that the views and cuts in front of it start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.views import TURNED, Parts, parts_of, read_by_others
from onnxopt.program.flash_attention import Heads

_PACKED = 3  # q, k and v in a tensor [B, S, heads, 3, width]


class Operand(NamedTuple):
    """q, k or v of a node: [B, tokens, heads * width], or four dims in this order of batch, token, head and element."""

    name: str
    value: ir.Value
    order: tuple[int, ...]


class Operands(NamedTuple):
    """heads: of q, k and v. inputs: of the kernel. nodes: on the way. groups: heads of k and v. tokens: of q and k."""

    heads: tuple[Heads, ...]
    inputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]
    groups: int
    width: int
    values: int
    tokens: tuple[int | str | None, int | str | None]


def packed(q: ir.Value, heads: int, shapes: Shapes) -> Operands | None:
    """q, k and v in one tensor [B, S, heads, 3, width]."""
    dims = shapes.dims(q)
    if dims is None or len(dims) != 5 or dims[2] != heads or dims[3] != _PACKED:
        return None
    width = dims[4]
    if not isinstance(width, int):
        return None
    places = tuple(Heads(0, _PACKED * heads * width, k * width, _PACKED * width) for k in range(_PACKED))
    return Operands(places, (q,), (), heads, width, width, (dims[1], dims[1]))


def apart(operands: Sequence[Operand], heads: int, readers: Sequence[ir.Node], shapes: Shapes) -> Operands | str:
    """q, k and v, or parts of other tensors. readers: the nodes of the attention, which may read what is on the way."""
    parts = _parts(operands, heads, readers, shapes)
    sources, widths, tokens, repeats = list[ir.Value](), [], [], []
    places = list[Heads]()
    for name, value, order in operands:
        dims = shapes.dims(value)
        if dims is None or len(dims) not in (3, 4):
            return f"The shape of {name} is unknown, or the kernel does not support it"
        by_head = len(dims) == 4
        width = _size(dims[order[3]] if by_head else dims[2], 1 if by_head else heads)
        if width is None or (by_head and dims[order[2]] != heads):
            return f"The size of a head of {name} is unknown"
        part = parts.get(value)
        if part is not None:
            places.append(Heads(0, part.row, part.first, part.step))
        elif by_head and order == TURNED:
            return f"The heads of {name} lie turned in `{value.name}`"
        else:
            places.append(Heads(0) if by_head else Heads(0, heads * width, 0, width))
        sources.append(value if part is None else part.source)
        repeats.append(1 if part is None else part.repeats)
        widths.append(width)
        tokens.append(dims[order[1]] if by_head else dims[1])
    if widths[0] != widths[1]:
        return "The heads of q and k differ in size"
    inputs = tuple(dict.fromkeys(sources))
    indexed = (dataclasses.replace(p, input=inputs.index(s)) for p, s in zip(places, sources, strict=True))
    upstream = tuple(dict.fromkeys(n for part in parts.values() for n in part.nodes))
    return Operands(
        tuple(indexed), inputs, upstream, heads // repeats[1], widths[0], widths[2], (tokens[0], tokens[1])
    )  # fmt: skip


def _size(dim: object, of: int) -> int | None:
    """Elements of a head, of which the dim holds `of`; None where they are not known."""
    return dim // of if isinstance(dim, int) and of and dim % of == 0 else None


def _parts(
    operands: Sequence[Operand], heads: int, readers: Sequence[ir.Node], shapes: Shapes
) -> dict[ir.Value, Parts]:
    """Where the operands lie in other tensors, as far as nothing but `readers` reads what is on the way.

    Heads of q are not repeated, and those of k and v for the same groups.
    """
    stop: frozenset[ir.Node] = frozenset()
    while True:
        by_value = {
            x.value: parts for x in operands if (parts := parts_of(x.value, heads, stop, shapes, x.order)) is not None
        }
        further = read_by_others([n for parts in by_value.values() for n in parts.nodes], readers)
        repeats = [by_value[x.value].repeats if x.value in by_value else 1 for x in operands]
        if repeats[0] != 1 or repeats[1] != repeats[2]:
            further |= {n for parts in by_value.values() for n in parts.nodes if n.op_type == "Expand"}
        if not further:
            return by_value
        stop |= further

"""Queries, keys and values that views and cuts take out of one tensor of tokens, followed back to that tensor.

    x [B, S, W] -> Reshape [B, S, 3, N, H] -> Transpose -> Slice -> Squeeze -> ... -> q [B, S, N H] | k [B, N, S, H]

Every axis of a value is an axis of x, or a part of its tokens with a step between elements. The nodes on the way cost
nothing in the kernel, which reads x in these steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.fusion.channels_last import is_constant
from onnxopt.graph.shapes.shapes import Shapes

_BATCH, _TOKEN = -1, -2  # steps of the two axes in front, which are none of a token's
_MOST_NODES = 12  # on the way


@dataclasses.dataclass(frozen=True)
class Axis:
    """size: None where it is symbolic. step: elements of a token, or _BATCH or _TOKEN."""

    size: int | None
    step: int


@dataclasses.dataclass(frozen=True)
class Parts:
    """Where the heads of a value lie: `step` elements apart from `first` on in every token of `row` elements."""

    source: ir.Value
    row: int
    first: int
    step: int
    nodes: tuple[ir.Node, ...]


def parts_of(value: ir.Value, heads: int, stop: frozenset[ir.Node], shapes: Shapes) -> Parts | None:
    """Where heads [B, S, heads * H] or [B, heads, S, H] lie in an earlier tensor; None where no node is between them.

    stop: nodes whose results others read too: nothing in front of them is followed.
    """
    best = None
    chain: list[ir.Node] = []
    while len(chain) < _MOST_NODES:
        producer = value.producer() if not chain else chain[-1].inputs[0].producer()  # type: ignore[union-attr]
        if producer is None or producer in stop or producer.domain != "" or producer.op_type not in _STEPS:
            return best
        chain.append(producer)
        found = _follow(value, chain, heads, shapes)
        best = found or best
    return best


def _follow(value: ir.Value, chain: Sequence[ir.Node], heads: int, shapes: Shapes) -> Parts | None:
    """The parts where the first tensor of a chain, whose last node comes first, is one of tokens."""
    source = chain[-1].inputs[0]
    dims = None if source is None else shapes.dims(source)
    if source is None or dims is None or len(dims) < 3 or not all(isinstance(d, int) for d in dims[2:]):
        return None
    sizes = [d for d in dims if isinstance(d, int)][-(len(dims) - 2) :]
    row = math.prod(sizes)
    axes = [Axis(_size(dims[0]), _BATCH), Axis(_size(dims[1]), _TOKEN)]
    axes += [Axis(size, math.prod(sizes[k + 1 :])) for k, size in enumerate(sizes)]
    first = 0
    nodes = list(reversed(chain))
    for k, node in enumerate(nodes):
        result = value if k == len(nodes) - 1 else nodes[k + 1].inputs[0]
        if result is None:
            return None
        if k == len(nodes) - 1 and _flattens(node, shapes):
            break  # the heads of one token side by side: they need not lie so
        moved = _STEPS[node.op_type](node, result, axes, shapes)
        if moved is None:
            return None
        axes, further = moved
        first += further
    return _heads(source, row, first, axes, heads, tuple(nodes), len(shapes.dims(value) or ()))


def _flattens(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node is a Reshape from [B, S, heads, H] to [B, S, heads * H]."""
    if node.op_type != "Reshape" or node.inputs[0] is None:
        return False
    of, to = shapes.dims(node.inputs[0]), shapes.dims(node.outputs[0])
    return of is not None and to is not None and (len(of), len(to)) == (4, 3) and None not in to and of[:2] == to[:2]


def _heads(
    source: ir.Value,
    row: int,
    first: int,
    axes: Sequence[Axis],
    heads: int,
    nodes: tuple[ir.Node, ...],
    rank: int,
) -> Parts | None:
    """The parts, where the axes are those of heads in one of the two orders."""
    steps = [axis.step for axis in axes]
    if rank == 3 and len(steps) == 3 and steps[:2] == [_BATCH, _TOKEN] and steps[2] == 1:
        size = axes[2].size
        return None if size is None or size % heads else Parts(source, row, first, size // heads, nodes)
    order = (0, 1, 2, 3) if rank == 3 else (0, 2, 1, 3)
    if len(steps) != 4:
        return None
    batch, token, head, element = (axes[k] for k in order)
    if (batch.step, token.step, element.step) != (_BATCH, _TOKEN, 1) or head.size != heads:
        return None
    return Parts(source, row, first, max(head.step, 1), nodes) if head.step > 0 or heads == 1 else None


_Moved = tuple[list[Axis], int]


def _reshape(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    """Splits axes, and joins those whose elements lie behind each other."""
    dims, before = shapes.dims(result), shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    if dims is None or before is None:
        return None
    kept = 0
    while kept < min(len(dims), len(before)) and dims[kept] is not None and dims[kept] == before[kept]:
        kept += 1
    rest, of = axes[kept:], dims[kept:]
    if any(axis.size is None or axis.step < 0 for axis in rest) or not all(isinstance(d, int) for d in of):
        return None
    made: list[Axis] = []
    pending = [(axis.size or 1, axis.step) for axis in rest]
    for dim in (d for d in of if isinstance(d, int)):
        size, step = 1, 0
        while size < dim and pending:
            inner, its_step = pending.pop(0)
            if size > 1 and step != inner * its_step:
                return None  # the axes do not lie behind each other
            if dim % size or ((dim // size) % inner and inner % (dim // size)):
                return None
            take = min(inner, dim // size)
            if take < inner:
                if inner % take:
                    return None
                pending.insert(0, (inner // take, its_step))
                its_step *= inner // take
            size, step = size * take, its_step
        if size != dim:
            return None
        made.append(Axis(dim, step))
    if any(size != 1 for size, _ in pending):
        return None
    return [*axes[:kept], *made], 0


def _transpose(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(axes))))) or ()
    return [axes[k] for k in order], 0


def _slice(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    bounds = [integers(v) for v in node.inputs[1:]]
    if len(bounds) < 3 or any(b is None or len(b) != 1 for b in bounds):
        return None
    (start,), _, (axis,) = bounds[0], bounds[1], bounds[2]  # type: ignore[misc]
    (step,) = bounds[3] if len(bounds) > 3 else (1,)  # type: ignore[misc]
    dims = shapes.dims(result)
    axis %= len(axes)
    of, length = axes[axis], None if dims is None else dims[axis]
    if step != 1 or of.size is None or of.step < 0 or not isinstance(length, int):
        return None
    return _cut(axes, axis, min(max(start + of.size if start < 0 else start, 0), of.size), length)


def _split(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    axis = (node.attributes.get_int("axis", 0) or 0) % len(axes)
    if axes[axis].step < 0:
        return None
    start = 0
    for output in node.outputs:
        length = (shapes.dims(output) or (None,) * len(axes))[axis]
        if not isinstance(length, int):
            return None
        if output is result:
            return _cut(axes, axis, start, length)
        start += length
    return None


def _cut(axes: Sequence[Axis], axis: int, start: int, length: int) -> _Moved:
    cut = list(axes)
    cut[axis] = Axis(length, axes[axis].step)
    return cut, start * axes[axis].step


def _gather(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    """One position of an axis, which goes."""
    index = node.inputs[1]
    if index is None or not is_constant(index) or index.const_value is None or len(index.const_value.shape) != 0:
        return None
    axis = (node.attributes.get_int("axis", 0) or 0) % len(axes)
    of = axes[axis]
    if of.step < 0 or of.size is None:
        return None
    return [a for k, a in enumerate(axes) if k != axis], int(index.const_value.numpy()) % of.size * of.step


def _squeeze(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    gone = integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if gone is None:
        return None
    positions = {k % len(axes) for k in gone}
    if any(axes[k].size != 1 for k in positions):
        return None
    return [a for k, a in enumerate(axes) if k not in positions], 0


_STEPS = {
    "Reshape": _reshape, "Transpose": _transpose, "Slice": _slice, "Split": _split, "Gather": _gather,
    "Squeeze": _squeeze,
}  # fmt: skip


def _size(dim: object) -> int | None:
    return dim if isinstance(dim, int) else None


def integers(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant, None where it is none."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return [int(n) for n in value.const_value.numpy().reshape(-1)]


def read_by_others(nodes: Sequence[ir.Node], readers: Sequence[ir.Node]) -> frozenset[ir.Node]:
    """Those of the nodes whose results others than these nodes and `readers` read."""
    inside = {*nodes, *readers}
    return frozenset(
        node for node in nodes
        if any(v.is_graph_output() or any(use.node not in inside for use in v.uses()) for v in node.outputs)
    )  # fmt: skip

"""Queries, keys and values that views and cuts take out of one tensor of tokens, followed back to that tensor.

    x [B, S, W] -> Reshape [B, S, 3, N, H] -> Transpose -> Slice -> Squeeze -> ... -> q [B, S, N H] | k [B, N, S, H]
    x [B, S, M H] -> Reshape [B, S, M, H] -> Unsqueeze -> Expand [B, S, M, N / M, H] -> ... -> k [B, S, N H]

Every axis of a value is an axis of x, or a part of its tokens with a step between elements; heads that are repeated for
a group have one step for each group. The nodes on the way cost nothing in the kernel, which reads x in these steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes.shapes import Shapes

_BATCH, _TOKEN = -1, -2  # steps of the two axes in front, which are none of a token's
_MAX_NODES = 12  # on the way
BY_TOKEN, BY_HEAD, TURNED = (0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2)  # where batch, token, head and element lie


@dataclasses.dataclass(frozen=True)
class Axis:
    """size: None where it is symbolic. step: elements of a token, or _BATCH or _TOKEN. repeats: of each element, one
    behind the other."""

    size: int | None
    step: int
    repeats: int = 1


@dataclasses.dataclass(frozen=True)
class Parts:
    """Where the heads of a value lie: `step` elements apart from `first` on in every token of `row` elements.

    repeats: heads that lie at one place, one behind the other.
    """

    source: ir.Value
    row: int
    first: int
    step: int
    nodes: tuple[ir.Node, ...]
    repeats: int = 1


def parts_of(
    value: ir.Value, heads: int, stop: frozenset[ir.Node], shapes: Shapes, order: tuple[int, ...] = BY_HEAD
) -> Parts | None:
    """Where heads [B, S, heads * H] or [B, heads, S, H] lie in an earlier tensor; None where no node is between them.

    stop: nodes whose results others read too: nothing in front of them is followed. order: of the axes of four.
    """
    best = None
    chain: list[ir.Node] = []
    while len(chain) < _MAX_NODES:
        producer = value.producer() if not chain else chain[-1].inputs[0].producer()  # type: ignore[union-attr]
        if producer is None or producer in stop or producer.domain != "" or producer.op_type not in _STEPS:
            return best
        chain.append(producer)
        parts = _follow(value, chain, heads, order, shapes)
        best = parts or best
    return best


def _follow(
    value: ir.Value, chain: Sequence[ir.Node], heads: int, order: tuple[int, ...], shapes: Shapes
) -> Parts | None:
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
    return _heads(Parts(source, row, first, 0, tuple(nodes)), axes, heads, order, len(shapes.dims(value) or ()))


def _flattens(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node is a Reshape from [B, S, heads, H], or groups of heads, to [B, S, heads * H]."""
    if node.op_type != "Reshape" or node.inputs[0] is None:
        return False
    of, to = shapes.dims(node.inputs[0]), shapes.dims(node.outputs[0])
    if of is None or to is None or None in to or of[:2] != to[:2]:
        return False
    return (len(of), len(to)) in ((4, 3), (5, 3))


def _heads(parts: Parts, axes: Sequence[Axis], heads: int, order: tuple[int, ...], rank: int) -> Parts | None:
    """The parts with their step, where the axes are those of heads in the order, or by token where there are three."""
    steps = [axis.step for axis in axes]
    if rank == 3 and len(steps) == 3 and steps[:2] == [_BATCH, _TOKEN] and steps[2] == 1 and axes[2].repeats == 1:
        size = axes[2].size
        return None if size is None or size % heads else dataclasses.replace(parts, step=size // heads)
    if rank == 3 and len(axes) == 5:
        merged = _merged(axes[2:4])
        axes = [*axes[:2], merged, axes[4]] if merged is not None else axes
    if len(axes) != 4:
        return None
    batch, token, head, element = (axes[k] for k in (order if rank == 4 else BY_TOKEN))
    if (batch.step, token.step, element.step, element.repeats) != (_BATCH, _TOKEN, 1, 1) or head.size != heads:
        return None
    if head.step <= 0 and head.repeats < heads:
        return None
    step = head.step if head.step > 0 else element.size  # a further head would lie beside the only one
    return None if step is None else dataclasses.replace(parts, step=step, repeats=head.repeats)


_Moved = tuple[list[Axis], int]


def _reshape(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    """Splits axes, and joins those whose elements lie behind each other."""
    dims, source = shapes.dims(result), shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    if dims is None or source is None:
        return None
    same = _equal(dims, source)
    tail = _equal(dims[same:][::-1], source[same:][::-1])
    rest, of = axes[same : len(axes) - tail], dims[same : len(dims) - tail]
    if any(axis.size is None or axis.step < 0 for axis in rest) or not all(isinstance(d, int) for d in of):
        return None
    grouped: list[Axis] = []
    pending = list(rest)
    for dim in (d for d in of if isinstance(d, int)):
        axis = _gathered(dim, pending)
        if axis is None:
            return None
        grouped.append(axis)
    return None if any(axis.size != 1 for axis in pending) else ([*axes[:same], *grouped, *axes[len(axes) - tail :]], 0)


def _equal(dims: Sequence[object], others: Sequence[object]) -> int:
    """How many of the first dims are known and equal."""
    pairs = list(zip(dims, others, strict=False))
    return next((k for k, (a, b) in enumerate(pairs) if a is None or a != b), len(pairs))


def _gathered(dim: int, pending: list[Axis]) -> Axis | None:
    """An axis of `dim` elements from the first of the pending ones, which it takes off them."""
    result = Axis(1, 0)
    while (result.size or 1) < dim and pending:
        inner, wanted = pending.pop(0), dim // (result.size or 1)
        size = inner.size or 1
        if dim % (result.size or 1) or (wanted % size and size % wanted):
            return None
        if size > wanted:
            if inner.repeats > 1:
                return None
            pending.insert(0, Axis(size // wanted, inner.step))
            inner = Axis(wanted, inner.step * (size // wanted))
        merged = _merged((result, inner))
        if merged is None:
            return None
        result = merged
    return result if result.size == dim else None


def _merged(axes: Sequence[Axis]) -> Axis | None:
    """One axis in place of two, where the elements of the outer one lie behind each other or are repeated."""
    outer, inner = axes
    if outer.size is None or inner.size is None:
        return None
    if outer.size == 1:
        return inner
    if inner.size == 1:
        return outer
    size = outer.size * inner.size
    if inner.step == 0 and outer.step > 0 and inner.repeats == inner.size:
        return Axis(size, outer.step, outer.repeats * inner.size)
    fits = outer.step == inner.step * inner.size and outer.repeats == inner.repeats == 1
    return Axis(size, inner.step) if fits else None


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
    return _sliced(axes, axis, min(max(start + of.size if start < 0 else start, 0), of.size), length)


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
            return _sliced(axes, axis, start, length)
        start += length
    return None


def _sliced(axes: Sequence[Axis], axis: int, start: int, length: int) -> _Moved | None:
    sliced = list(axes)
    if axes[axis].repeats > 1:
        return None
    sliced[axis] = Axis(length, axes[axis].step)
    return sliced, start * axes[axis].step


def _gather(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    """One position of an axis, which goes."""
    index = node.inputs[1]
    if index is None or not is_constant(index) or index.const_value is None or len(index.const_value.shape) != 0:
        return None
    axis = (node.attributes.get_int("axis", 0) or 0) % len(axes)
    of = axes[axis]
    if of.step < 0 or of.size is None or of.repeats > 1:
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


def _unsqueeze(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    added = integers(node.inputs[1])
    if added is None:
        return None
    rank = len(axes) + len(added)
    positions, rest = {k % rank for k in added}, iter(axes)
    return [Axis(1, 0) if k in positions else next(rest) for k in range(rank)], 0


def _expand(node: ir.Node, result: ir.Value, axes: Sequence[Axis], shapes: Shapes) -> _Moved | None:
    """Repeats axes of one element."""
    dims, source = shapes.dims(result), shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    if dims is None or source is None or len(dims) != len(source):
        return None
    expanded = []
    for axis, of, to in zip(axes, source, dims, strict=True):
        if to is not None and of == to:
            expanded.append(axis)
        elif axis.size == 1 and isinstance(to, int):
            expanded.append(Axis(to, 0, to))
        else:
            return None
    return expanded, 0


_STEPS = {
    "Reshape": _reshape, "Transpose": _transpose, "Slice": _slice, "Split": _split, "Gather": _gather,
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Expand": _expand,
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

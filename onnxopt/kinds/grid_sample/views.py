"""Values that views, slices and widening Casts take out of one tensor, followed back to that tensor.

    value [B, T, M C] -> Reshape [B, T, M, C] -> Slice of T -> Transpose [B, M, C, T] -> Reshape [B M, C, H, W]

Every dim of a value is made of parts of the tensor's axes, each with a step between elements. The nodes on the way cost
nothing in a kernel that reads the tensor in these steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxopt.graph.match import integers
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import FLOATS

_MAX_NODES = 12  # from a value to a tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of an axis of a tensor. size: None for what a batch of unknown size leaves. step: of the axis."""

    axis: int
    size: int | None
    step: int = 1


Dim = tuple[Part, ...]  # the outermost part first; no part for a dim of 1


@dataclasses.dataclass(frozen=True)
class Viewed:
    """A value as a view of a tensor. first: where it begins along each axis of the tensor but the first, by axis.
    nodes: from the tensor to the value."""

    tensor: ir.Value
    dims: tuple[Dim, ...]
    first: tuple[tuple[int, int], ...] = ()
    nodes: tuple[ir.Node, ...] = ()

    def through(self, node: ir.Node, result: ir.Value, shapes: Shapes) -> Viewed | None:
        """The view that a node makes of this one, None where no step says it."""
        step = _STEPS.get(node.op_type) if node.domain == "" else None
        moved = None if step is None else step(node, result, self, shapes)
        return None if moved is None else dataclasses.replace(moved, nodes=(*self.nodes, node))


@dataclasses.dataclass(frozen=True)
class Run:
    """Elements of a tensor with equal steps."""

    size: int
    step: int


def whole(value: ir.Value, shapes: Shapes) -> Viewed | None:
    """A value as a view of itself. None where dims after the first are unknown or 0."""
    dims = shapes.dims(value)
    if not dims or not all(isinstance(d, int) and d > 0 for d in dims[1:]):
        return None
    batch = dims[0] if isinstance(dims[0], int) else None
    if batch == 0:
        return None
    parts = [Part(k, d) for k, d in enumerate((batch, *(d for d in dims[1:] if isinstance(d, int))))]
    return Viewed(value, tuple(() if part.size == 1 else (part,) for part in parts))


def views(value: ir.Value, shapes: Shapes) -> Iterator[Viewed]:
    """A value as a view of itself and of earlier tensors, the nearest first."""
    chain: list[tuple[ir.Node, ir.Value]] = []
    tensor = value
    for _ in range(_MAX_NODES):
        viewed = whole(tensor, shapes)
        for node, result in reversed(chain):
            viewed = None if viewed is None else viewed.through(node, result, shapes)
        if viewed is not None:
            yield viewed
        producer = tensor.producer()
        if producer is None or producer.domain != "" or producer.op_type not in _STEPS or producer.inputs[0] is None:
            return
        chain.append((producer, tensor))
        tensor = producer.inputs[0]


def run(parts: Dim, tensor: ir.Value, shapes: Shapes) -> Run | None:
    """The elements of a tensor that parts of its axes go through, None where they have no one step."""
    joined: Run | None = None
    for part in parts:
        if part.size is None:
            return None
        step = part.step * inner(tensor, part.axis, shapes)
        if joined is None:
            joined = Run(part.size, step)
        elif joined.step == part.size * step:
            joined = Run(joined.size * part.size, step)
        else:
            return None
    return joined or Run(1, 0)


def inner(tensor: ir.Value, axis: int, shapes: Shapes) -> int:
    """Elements from one index of an axis to the next. The later dims are known."""
    return math.prod(d for d in (shapes.dims(tensor) or ())[axis + 1 :] if isinstance(d, int))


def _reshape(node: ir.Node, result: ir.Value, viewed: Viewed, shapes: Shapes) -> Viewed | None:
    """All dims after the first are gathered from the last part on; the first one has the rest."""
    dims = shapes.dims(result)
    if not dims or not all(isinstance(d, int) and d > 0 for d in dims[1:]) or not _is_stated(node):
        return None
    rest = [part for dim in viewed.dims for part in dim]
    gathered: list[Dim] = []
    for dim in reversed(dims[1:]):
        assert isinstance(dim, int)
        parts = _gathered(dim, rest)
        if parts is None:
            return None
        gathered.insert(0, parts)
    return dataclasses.replace(viewed, dims=(tuple(rest), *gathered))


def _is_stated(node: ir.Node) -> bool:
    """Whether the shape is a constant, which the function's body has."""
    return all(v is None or integers(v) is not None for v in node.inputs[1:])


def _gathered(dim: int, rest: list[Part]) -> Dim | None:
    """A dim of the last parts of `rest`, which it takes off."""
    parts: list[Part] = []
    wanted = dim
    while wanted > 1:
        if not rest:
            return None
        part = rest.pop()
        if part.size is not None and wanted % part.size == 0:
            parts.insert(0, part)
            wanted //= part.size
            continue
        if part.size is not None and part.size % wanted:
            return None
        outer = None if part.size is None else part.size // wanted
        parts.insert(0, dataclasses.replace(part, size=wanted))
        rest.append(Part(part.axis, outer, part.step * wanted))
        wanted = 1
    return tuple(parts)


def _transpose(node: ir.Node, result: ir.Value, viewed: Viewed, shapes: Shapes) -> Viewed | None:
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(viewed.dims))))) or ()
    return dataclasses.replace(viewed, dims=tuple(viewed.dims[k] for k in order))


def _cast(node: ir.Node, result: ir.Value, viewed: Viewed, shapes: Shapes) -> Viewed | None:
    return viewed if widens(node, shapes) else None


def widens(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node is a Cast of floats to float32, which loses nothing."""
    if node.op_type != "Cast" or node.domain != "" or node.inputs[0] is None:
        return False
    source, to = shapes.dtype(node.inputs[0]), shapes.dtype(node.outputs[0])
    return source is not None and source.name in FLOATS and to is not None and to.name == "float32"


def _slice(node: ir.Node, result: ir.Value, viewed: Viewed, shapes: Shapes) -> Viewed | None:
    bounds = [integers(v) or [] for v in node.inputs[1:]]
    source, to = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None, shapes.dims(result)
    if len(bounds) not in (3, 4) or source is None or to is None or any(len(b) != 1 for b in bounds):
        return None
    if len(bounds) == 4 and bounds[3] != [1]:
        return None
    axis = bounds[2][0] % len(source)
    return _cut(viewed, axis, bounds[0][0], source, to[axis])


def _split(node: ir.Node, result: ir.Value, viewed: Viewed, shapes: Shapes) -> Viewed | None:
    source = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    if source is None or not _is_stated(node):
        return None
    axis = (node.attributes.get_int("axis", 0) or 0) % len(source)
    sizes = [(shapes.dims(v) or {axis: None})[axis] for v in node.outputs]
    before = sizes[: list(node.outputs).index(result)]
    if not all(isinstance(size, int) for size in before):
        return None
    return _cut(viewed, axis, sum(s for s in before if isinstance(s, int)), source, sizes[len(before)])


def _cut(viewed: Viewed, axis: int, start: int, source: Sequence[object], size: object) -> Viewed | None:
    """Elements from `start` on of a dim, where these are whole steps of its outermost part; not of the batch."""
    dim, of = viewed.dims[axis], source[axis]
    if size == of:
        return viewed
    if not isinstance(size, int) or size < 1 or not isinstance(of, int) or any(p.axis == 0 or not p.size for p in dim):
        return None
    start, first = max(start + of, 0) if start < 0 else start, viewed.first
    while dim:
        part, each = dim[0], math.prod(p.size or 0 for p in dim[1:])
        first = (*first, (part.axis, start // each * part.step))
        if size % each == 0 and start % each == 0:
            count = size // each
            dim = (*(() if count == 1 else (dataclasses.replace(part, size=count),)), *dim[1:])
            break
        if start % each + size > each:
            return None
        start, dim = start % each, dim[1:]
    return dataclasses.replace(viewed, dims=(*viewed.dims[:axis], dim, *viewed.dims[axis + 1 :]), first=first)


def _gather(node: ir.Node, result: ir.Value, viewed: Viewed, shapes: Shapes) -> Viewed | None:
    """One index of a dim, which goes."""
    at, to = integers(node.inputs[1]), shapes.dims(result)
    source = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    if at is None or len(at) != 1 or source is None or to is None or len(to) != len(source) - 1:
        return None
    axis = (node.attributes.get_int("axis", 0) or 0) % len(source)
    moved = _cut(viewed, axis, at[0], source, 1)
    if moved is None or axis == 0:
        return None
    return dataclasses.replace(moved, dims=(*moved.dims[:axis], *moved.dims[axis + 1 :]))


_Step = Callable[[ir.Node, ir.Value, Viewed, Shapes], Viewed | None]
_STEPS: dict[str, _Step] = {
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Cast": _cast,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
}

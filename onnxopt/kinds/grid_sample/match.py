"""Samples of maps: what is recognised around a GridSample, the most first.

    GridSample of each level -> Concat -> Mul by weights -> ReduceSum -> Reshape, Transpose    (deformable attention)
    GridSample -> Mul by weights -> ReduceSum
    GridSample

each with the views and Casts around it (views.py), and without them where the kernel cannot read or write what is
around them, or something else reads it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.match import integers, only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.grid_sample.views import Part, Run, Viewed, inner, run, views, whole, widens
from onnxopt.program.core import FLOATS
from onnxopt.program.grid_sample import MAX_LEVELS, GridSampleLevel, GridSampleSteps, GridSampleView

OPERATOR = "GridSample"
_SINCE = 16
_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # of opset 16
_RESHAPES = ("Reshape", "Unsqueeze", "Squeeze")


@dataclasses.dataclass(frozen=True)
class Samples:
    """GridSamples of one sum, or one without a sum. nodes: with those of the sum. weights: that samples are multiplied
    with. y: the result. summed, kept: whether the last dim is summed, and whether it stays as 1."""

    grids: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]
    weights: ir.Value | None
    y: ir.Value
    summed: bool = False
    kept: bool = False


def why_not(node: ir.Node, shapes: Shapes, opset: int) -> str | None:
    """The reason why no kernel can run this GridSample, None where one can."""
    if opset < _SINCE or len(node.inputs) != 2 or None in node.inputs:
        return f"GridSample can be fused from opset {_SINCE} on"
    names = [dtype.name if dtype is not None else "an unknown dtype" for dtype in map(shapes.dtype, _operands(node))]
    if other := [name for name in names if name not in FLOATS]:
        return f"No kernel runs GridSample of {other[0]}"
    if _dims(node, shapes) not in (2, 3):
        return "GridSample samples from no known number of two or three dims"
    mode = _fields(node)["mode"]
    if mode not in ("nearest", "linear", "cubic") or (mode == "cubic" and _dims(node, shapes) == 3):
        return f"No kernel runs GridSample with mode {mode} of {_dims(node, shapes)} dims"
    return None


def matches(node: ir.Node, shapes: Shapes) -> Iterator[CoreMatch]:
    """What a kernel may run around a GridSample that one can run, the most nodes first."""
    for samples in _samples(node, shapes):
        yield from _stored(samples, shapes)
        yield from _plain(samples, shapes)


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    data, grid = node.inputs
    assert data is not None and grid is not None
    return data, grid


def _dims(node: ir.Node, shapes: Shapes) -> int | None:
    ranks = {len(d) for d in map(shapes.dims, _operands(node)) if d is not None}
    return next(iter(ranks)) - 2 if len(ranks) == 1 else None


def _fields(node: ir.Node) -> dict[str, Any]:
    mode = node.attributes.get_string("mode", "linear") or ""
    return {
        "mode": _MODES.get(mode, mode),
        "padding": node.attributes.get_string("padding_mode", "zeros"),
        "align_corners": bool(node.attributes.get_int("align_corners", 0)),
    }


# --- sums ---


def _samples(node: ir.Node, shapes: Shapes) -> Iterator[Samples]:
    sample, cast = _after_cast(node.outputs[0], [node], shapes)
    concat = _concat(sample, cast, shapes)
    if concat is not None and (found := _summed(*concat, shapes)) is not None:
        yield found
    if (found := _summed((node,), sample, cast, shapes)) is not None:
        yield found
    yield Samples((node,), (node,), None, node.outputs[0])


def _after_cast(value: ir.Value, nodes: Sequence[ir.Node], shapes: Shapes) -> tuple[ir.Value, list[ir.Node]]:
    """A value, or what a Cast to floats that alone reads it makes of it, and the nodes with that Cast."""
    reader = only_consumer(value)
    if reader is not None and _rounds(reader, shapes):
        return reader.outputs[0], [*nodes, reader]
    return value, list(nodes)


def _rounds(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node is a Cast to floats."""
    dtype = shapes.dtype(node.outputs[0])
    return node.op_type == "Cast" and node.domain == "" and dtype is not None and dtype.name in FLOATS


def _concat(
    sample: ir.Value, nodes: list[ir.Node], shapes: Shapes
) -> tuple[tuple[ir.Node, ...], ir.Value, list[ir.Node]] | None:
    """The GridSamples of levels, their samples of all points side by side [N, C, Q, points], and the nodes."""
    reader = only_consumer(sample)
    if reader is not None and reader.op_type in _RESHAPES:
        reader = only_consumer(reader.outputs[0])
    if reader is None or reader.op_type != "Concat" or len(reader.inputs) > MAX_LEVELS:
        return None
    grids, inside = list[ir.Node](), list[ir.Node]()
    for value in reader.inputs:
        level = _level(value, shapes)
        if level is None:
            return None
        grids.append(level[-1])
        inside += reversed(level)
    if any(_fields(g) != _fields(grids[0]) or _dims(g, shapes) != 2 for g in grids):
        return None
    of, joined = shapes.dims(grids[0].outputs[0]), reader.outputs[0]
    dims = shapes.dims(joined)
    if dims is None or of is None:
        return None
    axis = (reader.attributes.get_int("axis", 0) or 0) % len(dims)
    inside.append(reader)
    if (len(dims), axis) == (5, 3):  # levels before points
        reader = only_consumer(joined)
        if reader is None or reader.op_type not in _RESHAPES:
            return None
        joined, dims = reader.outputs[0], shapes.dims(reader.outputs[0])
        inside.append(reader)
    elif (len(dims), axis) != (4, 3):
        return None
    if dims is None or len(dims) != 4 or dims[1:3] != of[1:3]:
        return None
    joined, inside = _after_cast(joined, inside, shapes)
    return tuple(grids), joined, inside


def _level(value: ir.Value | None, shapes: Shapes) -> list[ir.Node] | None:
    """The nodes from an operand of a Concat of levels back to its GridSample, which nothing else reads."""
    nodes: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and only_consumer(value) is not None:
        if node.domain != "" or not (node.op_type in (OPERATOR, *_RESHAPES) or _rounds(node, shapes)):
            return None
        nodes.append(node)
        value = node.inputs[0]
        if node.op_type == OPERATOR:
            of, to = shapes.dims(node.outputs[0]), shapes.dims(nodes[0].outputs[0])
            if of is None or to is None or len(of) != 4:
                return None
            return nodes if to in (of, (*of[:3], 1, *of[3:])) else None
    return None


def _summed(grids: tuple[ir.Node, ...], sample: ir.Value, nodes: list[ir.Node], shapes: Shapes) -> Samples | None:
    """The samples with the sum over their last dim, weighed or not, where that is all that reads them."""
    reader, weights = only_consumer(sample), None
    if reader is not None and reader.op_type == "Mul" and reader.domain == "":
        others = [v for v in reader.inputs if v is not sample]
        weights = others[0] if len(others) == 1 else None
        if weights is None or not _weighs(weights, sample, shapes):
            return None
        sample, nodes = _after_cast(reader.outputs[0], [*nodes, reader], shapes)
        reader = only_consumer(sample)
    dims = shapes.dims(sample)
    if reader is None or reader.op_type != "ReduceSum" or reader.inputs[0] is not sample or dims is None:
        return None
    axes = integers(reader.inputs[1]) if len(reader.inputs) > 1 else None
    if axes not in ([-1], [len(dims) - 1]):
        return None
    kept = bool(reader.attributes.get_int("keepdims", 1))
    return Samples(grids, (*nodes, reader), weights, reader.outputs[0], summed=True, kept=kept)


def _weighs(weights: ir.Value, sample: ir.Value, shapes: Shapes) -> bool:
    """Whether weights are [N, 1, *So] beside samples [N, C, *So]."""
    dims, of, dtype = shapes.dims(weights), shapes.dims(sample), shapes.dtype(weights)
    if dims is None or of is None or len(dims) != len(of) or dtype is None or dtype.name not in FLOATS:
        return False
    return dims[1] == 1 and None not in dims and (dims[0], *dims[2:]) == (of[0], *of[2:])


# --- operands of the operator's shapes ---


def _plain(samples: Samples, shapes: Shapes) -> Iterator[CoreMatch]:
    """With the Transposes of channels last around it, and without them."""
    if len(samples.grids) > 1:
        return
    (node,) = samples.grids
    data, grid = _operands(node)
    dims = _dims(node, shapes) or 0
    y, after = _after_cast(samples.y, [], shapes)
    rest = dims - samples.summed
    turn = only_consumer(y)
    is_last = turn is not None and turn.op_type == "Transpose" and not samples.kept
    is_last = is_last and turn.attributes.get_ints("perm") == (0, *range(2, rest + 2), 1)  # type: ignore[union-attr]
    results: list[tuple[ir.Value, tuple[ir.Node, ...], bool]] = [(samples.y, (), True)]
    if is_last and turn is not None:
        results.insert(0, (turn.outputs[0], (*after, turn), False))
    of_grid = _before(grid, (), shapes)
    for first, source in dict.fromkeys((_before(data, (0, dims + 1, *range(1, dims + 1)), shapes), (data, ()))):
        for coordinates, widened in dict.fromkeys((of_grid, (grid, ()))):
            for result, further, planes in results:
                nodes = (*source, *widened, *samples.nodes, *further)
                is_turned = any(n.op_type == "Transpose" for n in source)
                fields = {"planes": not is_turned, "result_planes": planes, "kept": samples.kept and planes}
                yield _match(samples, dims, nodes, (first, coordinates, samples.weights), result, fields)


def _before(value: ir.Value, order: tuple[int, ...], shapes: Shapes) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """What a Transpose to this order and widening Casts compute an operand from, and these nodes, as far as nothing
    else reads their results."""
    nodes: tuple[ir.Node, ...] = ()
    while (node := value.producer()) is not None and only_consumer(value) is not None and node.domain == "":
        has_turned = any(n.op_type == "Transpose" for n in nodes)
        turns = node.op_type == "Transpose" and tuple(node.attributes.get_ints("perm") or ()) == order
        if not (widens(node, shapes) or (turns and not has_turned)) or node.inputs[0] is None:
            break
        value, nodes = node.inputs[0], (node, *nodes)
    return value, nodes


def _match(
    samples: Samples,
    dims: int,
    nodes: Sequence[ir.Node],
    operands: tuple[ir.Value, ir.Value, ir.Value | None],
    y: ir.Value,
    fields: Mapping[str, Any],
) -> CoreMatch:
    data, grid, weights = operands
    return CoreMatch(
        tuple(dict.fromkeys(nodes)), grid, y, {"data": data, "weights": weights}, operands,
        {"dims": dims, **_fields(samples.grids[0]), "summed": samples.summed, **fields},
        y_channels=1 if fields["result_planes"] else -1,
    )  # fmt: skip


# --- operands that are read where they are stored ---


def _stored(samples: Samples, shapes: Shapes) -> Iterator[CoreMatch]:
    """With views around the operands and the result, as far as nothing else reads what is between."""
    dims = _dims(samples.grids[0], shapes) or 0
    operands = [[_operands(node)[k] for node in samples.grids] for k in (0, 1)]
    found = [_common(values, samples.nodes, shapes) for values in operands]
    weights = None if samples.weights is None else _common([samples.weights], samples.nodes, shapes)
    result = _result(samples, shapes)
    if None in found or (samples.weights is not None and weights is None):
        return
    data, grid = (viewed for viewed in found if viewed is not None)
    for y, after, channels_last in result:
        view = _View(samples, dims, data, grid, weights, y, channels_last, shapes).view()
        if view is None:
            continue
        nodes = [n for viewed in (*data, *grid, *(weights or ())) for n in viewed.nodes]
        kept = samples.kept and not channels_last
        fields = {"planes": True, "result_planes": not channels_last, "kept": kept, "view": view}
        tensors = (data[0].tensor, grid[0].tensor, None if weights is None else weights[0].tensor)
        yield _match(samples, dims, [*nodes, *samples.nodes, *after], tensors, y, fields)


def _common(values: Sequence[ir.Value], nodes: Sequence[ir.Node], shapes: Shapes) -> list[Viewed] | None:
    """The values as views of the earliest tensor that they are all views of, where nothing but the nodes of a region
    reads what is between."""
    every = [list(views(value, shapes)) for value in values]
    if not all(every):
        return None
    for first in reversed(every[0]):
        same = [next((v for v in of if v.tensor is first.tensor), None) for of in every]
        found = [v for v in same if v is not None]
        inside = {*nodes, *(n for v in found for n in v.nodes)}
        if len(found) == len(values) and all(_is_read_by(n, inside) for v in found for n in v.nodes):
            return found
    return None


def _is_read_by(node: ir.Node, inside: set[ir.Node]) -> bool:
    return not any(v.is_graph_output() or any(u.node not in inside for u in v.uses()) for v in node.outputs)


def _result(samples: Samples, shapes: Shapes) -> list[tuple[ir.Value, tuple[ir.Node, ...], bool]]:
    """Values that the kernel can store in place of y, with the nodes that compute them, and whether channels are last:
    the views of y [N, C, *So] that are [b, *So, heads * C], and y."""
    found: list[tuple[ir.Value, tuple[ir.Node, ...], bool]] = [(samples.y, (), False)]
    viewed, value, nodes = whole(samples.y, shapes), samples.y, list[ir.Node]()
    rest = len(shapes.dims(samples.y) or ()) - 2
    while viewed is not None and (node := only_consumer(value)) is not None:
        if not (_rounds(node, shapes) or node.op_type in ("Transpose", *_RESHAPES)) or node.inputs[0] is not value:
            break
        value, nodes = node.outputs[0], [*nodes, node]
        viewed = viewed if node.op_type == "Cast" else viewed.through(node, value, shapes)
        if viewed is not None and not samples.kept and heads_of_result(viewed, rest, shapes) is not None:
            found.insert(0, (value, tuple(nodes), True))
    return found


def heads_of_result(viewed: Viewed, rest: int, shapes: Shapes) -> int | None:
    """The heads of y [N, C, *So] as a view [b, *So, heads * C], None where it is none."""
    of, dims = viewed.tensor, viewed.dims
    if len(dims) != rest + 2 or any(part.axis != 0 for part in dims[0]):
        return None
    if any(part.axis != k + 2 for k, dim in enumerate(dims[1:-1]) for part in dim):
        return None
    heads = [part for part in dims[-1] if part.axis == 0]
    channels = [part for part in dims[-1] if part.axis != 0]
    sizes = shapes.dims(of) or ()
    has_all = all(part.axis == 1 and part.size == sizes[1] for part in channels)
    if not has_all or len(channels) != (sizes[1] != 1) or len(heads) > 1 or dims[-1] != (*heads, *channels):
        return None
    if any(part.step != 1 for part in heads) or any(part.step != (heads[0].size if heads else 1) for part in dims[0]):
        return None
    return (heads[0].size or 1) if heads else 1


@dataclasses.dataclass(frozen=True)
class _View:
    """How operands and result are stored, as the kernel's meaning says it."""

    samples: Samples
    dims: int
    data: Sequence[Viewed]
    grid: Sequence[Viewed]
    weights: Sequence[Viewed] | None
    y: ir.Value
    channels_last: bool
    shapes: Shapes

    def view(self) -> GridSampleView | None:
        """None where steps do not say it, or nothing is viewed but Transposes that need no steps."""
        every = (*self.data, *self.grid, *(self.weights or ()))
        if not any(viewed.nodes for viewed in every) and not self._heads_of_y():
            return None
        heads = {self._heads(viewed.dims[0], viewed) for viewed in every} | {self._heads_of_y()}
        several = [h for h in heads if h]
        if -1 in heads or len(set(several)) > 1:
            return None
        count = several[0] if several else 1
        sizes = [self.shapes.dims(node.inputs[1]) for node in self.samples.grids]  # type: ignore[arg-type]
        channels = (self.shapes.dims(self.samples.grids[0].outputs[0]) or (None, None))[1]
        if not all(size is not None and _are_known(size[1:]) for size in sizes) or not isinstance(channels, int):
            return None
        levels, steps = self._levels(count), self._steps(self.grid, count, coordinates=True)
        weights = None if self.weights is None else self._steps(self.weights, count, coordinates=False)
        of_data = {self._data_steps(viewed, count) for viewed in self.data}
        if levels is None or steps is None or (self.weights is not None and weights is None) or len(of_data) != 1:
            return None
        (data,) = of_data
        if data is None:
            return None
        points = [level.points for level in levels]
        size = tuple(int(d) for d in sizes[0][1:-1])  # type: ignore[index, arg-type]
        size = (*size[:-1], sum(points)) if self.samples.summed else size
        return GridSampleView(count, channels, size, *data, tuple(levels), steps, weights)

    def _heads_of_y(self) -> int | None:
        """None where the result is as of no heads."""
        if not self.channels_last:
            return None
        for viewed in views(self.y, self.shapes):
            if viewed.tensor is self.samples.y:
                heads = heads_of_result(viewed, len(viewed.dims) - 2, self.shapes)
                return heads if heads is not None and heads > 1 else None
        return None

    def _heads(self, dim: tuple[Part, ...], viewed: Viewed) -> int | None:
        """The heads that a dim of samples has beside the batch; None for none, -1 where it is none of samples."""
        others = [part for part in dim if part.axis != 0]
        if [part.axis for part in dim] not in ([], [0], [0, *(p.axis for p in others)], [p.axis for p in others]):
            return -1
        if any(part.axis == 0 and part.step != 1 for part in dim):
            return -1
        joined = run(tuple(others), viewed.tensor, self.shapes)
        return -1 if joined is None else None if joined.size == 1 else joined.size

    def _batch(self, viewed: Viewed, heads: int) -> tuple[int, int]:
        """Elements from one b to the next, and from one head to the next."""
        each = inner(viewed.tensor, 0, self.shapes)
        others = tuple(part for part in viewed.dims[0] if part.axis != 0)
        if not others:
            return each * heads, each if heads > 1 else 0
        step = run(others, viewed.tensor, self.shapes)
        return each, step.step if step is not None else 0

    def _run(self, dims: Sequence[tuple[Part, ...]], viewed: Viewed) -> Run | None:
        parts = tuple(part for dim in dims for part in dim)
        if any(part.axis == 0 for part in parts):
            return None
        return run(parts, viewed.tensor, self.shapes)

    def _first(self, viewed: Viewed) -> int:
        return sum(at * inner(viewed.tensor, axis, self.shapes) for axis, at in viewed.first)

    def _data_steps(self, viewed: Viewed, heads: int) -> tuple[int, int, int, int] | None:
        """batch, head, channel, pixel."""
        channel, pixel = self._run(viewed.dims[1:2], viewed), self._run(viewed.dims[2:], viewed)
        if channel is None or pixel is None:
            return None
        return (*self._batch(viewed, heads), channel.step, pixel.step)

    def _levels(self, heads: int) -> list[GridSampleLevel] | None:
        levels = []
        for node, data, grid in zip(self.samples.grids, self.data, self.grid, strict=True):
            dims, of = self.shapes.dims(_operands(node)[0]), self.shapes.dims(_operands(node)[1])
            if dims is None or of is None or not _are_known(dims[2:]):
                return None
            *deep, height, width = (int(d) for d in dims[2:] if d is not None)
            points = int(of[-2] or 0) if self.samples.summed else 1
            levels.append(
                GridSampleLevel(self._first(data), self._first(grid), deep[0] if deep else 1, height, width, points)
            )
        return levels

    def _steps(self, every: Sequence[Viewed], heads: int, *, coordinates: bool) -> GridSampleSteps | None:
        """Of a grid, whose last dim has coordinates, or of weights, whose second dim is 1."""
        found = set()
        for viewed in every:
            dims = viewed.dims[1:-1] if coordinates else viewed.dims[2:]
            last = 1 if self.samples.summed else 0
            position = self._run(dims[: len(dims) - last], viewed)
            point = self._run(dims[len(dims) - last :], viewed)
            neighbours = self._run(viewed.dims[-1:], viewed) if coordinates else Run(1, 1)
            if position is None or point is None or neighbours is None or neighbours.step != 1:
                return None
            if not coordinates and (viewed.first or viewed.dims[1]):
                return None
            found.add((*self._batch(viewed, heads), position.step, point.step))
        return GridSampleSteps(*found.pop()) if len(found) == 1 else None


def _are_known(dims: Sequence[int | str | None]) -> bool:
    return all(isinstance(d, int) and d > 0 for d in dims)

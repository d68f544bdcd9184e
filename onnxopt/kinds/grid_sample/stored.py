"""Samples whose operands and result are read and written where they are stored (views.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.match import only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.grid_sample.samples import RESHAPES, Samples, core_match, dims_of, operands_of, rounds
from onnxopt.kinds.grid_sample.views import Part, Run, Viewed, inner, run, views, whole
from onnxopt.program.grid_sample import GridSampleLevel, GridSampleSteps, GridSampleView


def stored(samples: Samples, shapes: Shapes) -> Iterator[CoreMatch]:
    """With views around the operands and the result, as far as nothing else reads what is between."""
    dims = dims_of(samples.grids[0], shapes) or 0
    operands = [[operands_of(node)[k] for node in samples.grids] for k in (0, 1)]
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
        yield core_match(samples, dims, [*nodes, *samples.nodes, *after], tensors, y, fields)


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
        if not (rounds(node, shapes) or node.op_type in ("Transpose", *RESHAPES)) or node.inputs[0] is not value:
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
            dims, of = self.shapes.dims(operands_of(node)[0]), self.shapes.dims(operands_of(node)[1])
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

"""Brings ScatterND that fills a box of a tensor with one number to a choice, and changes no bit of any result.

    x[a:b, c:d] = k, as ScatterND(x, grid of Slices of Range(0, n, 1), k)
        -> Where(And(i >= a, i < b, j >= c, j < d), k, x)

Exporters write assignments to slices in this way, as the masks of shifted windows are made, where sizes are dynamic:
a dozen nodes for each box. Bounds that count from the end are compared with i - n, which is Range(-n, 0, 1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.equal_views import constant_of
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.graph.shapes.value_dims import uniform

_END = np.iinfo(np.int32).max  # and above: up to the last element


class Side(NamedTuple):
    """Positions [begin, end) of one axis, negative ones from the end. counted: Range(0, n, 1), n the axis's size."""

    axis: int
    counted: ir.Node
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.end >= _END


class FilledBoxesPass(ir.passes.InPlacePass):
    """Replaces each ScatterND of the main graph that fills a box. The model has opset 13 or later."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        scatters = [n for n in model.graph if (n.domain, n.op_type) == ("", "ScatterND")]
        scatters = [n for n in scatters if n.inputs[1] is not None and constant_of(n.inputs[1]) is None]
        if not scatters:
            return ir.passes.PassResult(model, False)
        inferred, modified = infer.infer(model), False
        for node in scatters:
            sides = box_of(node, inferred)
            if not isinstance(sides, str):
                _replace(model.graph, node, sides, inferred)
                modified = True
        return ir.passes.PassResult(model, modified)


def box_of(node: ir.Node, inferred: Knowledge) -> list[Side] | str:
    """The sides of the box that a ScatterND fills with one number, or why it fills none."""
    data, indices, updates = node.inputs[:3]
    dims, index_dims = inferred.dims(data), inferred.dims(indices)
    if node.attributes.get_string("reduction", "none") != "none" or uniform(updates) is None:
        return "the updates are not one number that is stored"
    grid = None if indices is None else indices.producer()
    if dims is None or index_dims is None or grid is None or grid.op_type != "Concat" or grid.domain != "":
        return "the indices are no Concat, or dims are not known"
    if grid.attributes.get_int("axis", 0) not in (-1, len(index_dims) - 1) or len(grid.inputs) != len(dims):
        return "the indices do not have a part for each dim of the data"
    sides, owners = list[Side](), set[int]()
    for axis, part in enumerate(grid.inputs):
        part_dims = inferred.dims(part)
        if part is None or part_dims is None or part_dims[-1] != 1:
            return "the indices do not have a part for each dim of the data"
        if uniform(part) == 0 and dims[axis] == 1:
            continue
        placed = _placed(part, inferred)
        side = None if placed is None else _side(placed[0], axis)
        if placed is None or side is None or inferred.dims(side.counted.outputs[0]) != (dims[axis],):
            return f"the positions along axis {axis} are no part of those that are there"
        own = len(part_dims) - placed[1]
        if own in owners or (part_dims[own],) != inferred.dims(placed[0]):
            return f"the positions along axis {axis} are not repeated for all others"
        owners.add(own)
        sides.append(side)
    for axis in (k for k in range(len(index_dims) - 1) if k not in owners):
        if not any((part_dims := inferred.dims(part)) is not None and part_dims[axis] == 1 for part in grid.inputs):
            return "positions may be missing"
    return sides if any(not side.is_whole for side in sides) else "all elements are replaced"


def _placed(value: ir.Value, inferred: Knowledge) -> tuple[ir.Value, int] | None:
    """A vector whose elements a tensor repeats, and along which axis they are, counted from the end."""
    node, dims = value.producer(), inferred.dims(value)
    if node is None or node.domain != "" or dims is None:
        return None
    if len(dims) == 1 and node.op_type in ("Range", "Slice"):
        return value, 1
    inner = None if not node.inputs or node.inputs[0] is None else _placed(node.inputs[0], inferred)
    if inner is None or node.op_type not in ("Expand", "Identity", "Unsqueeze", "Reshape"):
        return None
    vector, place = inner
    if node.op_type == "Unsqueeze":
        axes = constant_of(node.inputs[1])
        if axes is None:
            return None
        rest = sorted(set(range(len(dims))) - {int(a) % len(dims) for a in axes.numpy().ravel()})
        return vector, len(dims) - rest[len(rest) - place]
    if node.op_type == "Reshape":
        longer = [axis for axis, dim in enumerate(dims) if dim != 1]
        same = [d for d in inferred.dims(node.inputs[0]) or () if d != 1] == [dims[axis] for axis in longer]
        return (vector, len(dims) - longer[0]) if same and len(longer) == 1 else None
    return vector, place


def _side(vector: ir.Value, axis: int) -> Side | None:
    """The positions that a vector holds: all of a Range from 0 in steps of 1, or those of one Slice of it."""
    node, bounds = vector.producer(), (0, _END)
    if node is not None and node.op_type == "Slice":
        numbers = [
            None if (t := constant_of(v)) is None or t.size != 1 else int(t.numpy().item()) for v in node.inputs[1:]
        ]
        if None in numbers or numbers[2:3] not in ([], [0], [-1]) or numbers[3:] not in ([], [1]):
            return None
        begin, end, *_ = (number for number in numbers if number is not None)
        node, bounds = node.inputs[0].producer() if node.inputs[0] is not None else None, (begin, end)
    if node is None or (node.domain, node.op_type) != ("", "Range"):
        return None
    first, step = uniform(node.inputs[0]), uniform(node.inputs[2])
    return Side(axis, node, *bounds) if (first, step) == (0, 1) else None


def _replace(graph: ir.Graph, node: ir.Node, sides: list[Side], inferred: Knowledge) -> None:
    new, data, dims = NewNodes(graph, node), node.inputs[0], inferred.dims(node.inputs[0])
    assert data is not None and dims is not None and data.dtype is not None
    inside: ir.Value | None = None
    for side in sides:
        for condition in _conditions(new, side, len(dims)):
            inside = condition if inside is None else new.add("And", [inside, condition], ir.DataType.BOOL)
    number = new.constant(np.array(uniform(node.inputs[2]), data.dtype.numpy()))
    covered = {side.axis for side in sides if not side.is_whole}
    if (held := uniform(data)) is not None and all(dim == 1 or axis in covered for axis, dim in enumerate(dims)):
        data = new.constant(np.full([1] * len(dims), held, data.dtype.numpy()))
    result = new.add("Where", [inside, number, data], node.outputs[0].dtype)
    result.shape = node.outputs[0].shape
    node.outputs[0].replace_all_uses_with(result, replace_graph_outputs=True)


def _conditions(new: NewNodes, side: Side, rank: int) -> list[ir.Value]:
    """Which positions of the axis are on the side, broadcast to a tensor of this rank."""
    shape = np.array([-1, *[1] * (rank - 1 - side.axis)], np.int64)
    position = new.add("Reshape", [side.counted.outputs[0], new.constant(shape)], ir.DataType.INT64)
    conditions, from_end = [], None
    for bound, op_type in ((side.begin, "GreaterOrEqual"), (side.end, "Less")):
        if (bound == 0 and op_type == "GreaterOrEqual") or bound >= _END:
            continue
        counted = position
        if bound < 0:
            from_end = from_end or _from_end(new, side, shape)
            counted = from_end
        limit = new.constant(np.array(bound, np.int64))
        conditions.append(new.add(op_type, [counted, limit], ir.DataType.BOOL))
    return conditions


def _from_end(new: NewNodes, side: Side, shape: np.ndarray) -> ir.Value:
    """The positions, counted from the end: a Range, whose bounds stay on the host. i - n would read n on the device."""
    first = new.add("Neg", [side.counted.inputs[1]], ir.DataType.INT64)
    zero, one = (new.constant(np.array(number, np.int64)) for number in (0, 1))
    counted = new.add("Range", [first, zero, one], ir.DataType.INT64)
    return new.add("Reshape", [counted, new.constant(shape)], ir.DataType.INT64)

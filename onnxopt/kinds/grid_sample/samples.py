"""GridSamples, and the sums over points that weigh them: the nodes, without what is stored around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.match import integers, only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import FLOATS
from onnxopt.program.grid_sample import MAX_LEVELS

OPERATOR = "GridSample"
_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # of opset 16
RESHAPES = ("Reshape", "Unsqueeze", "Squeeze")


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


def samples_of(node: ir.Node, shapes: Shapes) -> Iterator[Samples]:
    sample, cast = after_cast(node.outputs[0], [node], shapes)
    concat = _concat(sample, cast, shapes)
    if concat is not None and (found := _summed(*concat, shapes)) is not None:
        yield found
    if (found := _summed((node,), sample, cast, shapes)) is not None:
        yield found
    yield Samples((node,), (node,), None, node.outputs[0])


def after_cast(value: ir.Value, nodes: Sequence[ir.Node], shapes: Shapes) -> tuple[ir.Value, list[ir.Node]]:
    """A value, or what a Cast to floats that alone reads it makes of it, and the nodes with that Cast."""
    reader = only_consumer(value)
    if reader is not None and rounds(reader, shapes):
        return reader.outputs[0], [*nodes, reader]
    return value, list(nodes)


def rounds(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node is a Cast to floats."""
    dtype = shapes.dtype(node.outputs[0])
    return node.op_type == "Cast" and node.domain == "" and dtype is not None and dtype.name in FLOATS


def _concat(
    sample: ir.Value, nodes: list[ir.Node], shapes: Shapes
) -> tuple[tuple[ir.Node, ...], ir.Value, list[ir.Node]] | None:
    """The GridSamples of levels, their samples of all points side by side [N, C, Q, points], and the nodes."""
    reader = only_consumer(sample)
    if reader is not None and reader.op_type in RESHAPES:
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
    if any(fields_of(g) != fields_of(grids[0]) or dims_of(g, shapes) != 2 for g in grids):
        return None
    of, joined = shapes.dims(grids[0].outputs[0]), reader.outputs[0]
    dims = shapes.dims(joined)
    if dims is None or of is None:
        return None
    axis = (reader.attributes.get_int("axis", 0) or 0) % len(dims)
    inside.append(reader)
    if (len(dims), axis) == (5, 3):  # levels before points
        reader = only_consumer(joined)
        if reader is None or reader.op_type not in RESHAPES:
            return None
        joined, dims = reader.outputs[0], shapes.dims(reader.outputs[0])
        inside.append(reader)
    elif (len(dims), axis) != (4, 3):
        return None
    if dims is None or len(dims) != 4 or dims[1:3] != of[1:3]:
        return None
    joined, inside = after_cast(joined, inside, shapes)
    return tuple(grids), joined, inside


def _level(value: ir.Value | None, shapes: Shapes) -> list[ir.Node] | None:
    """The nodes from an operand of a Concat of levels back to its GridSample, which nothing else reads."""
    nodes: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and only_consumer(value) is not None:
        if node.domain != "" or not (node.op_type in (OPERATOR, *RESHAPES) or rounds(node, shapes)):
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
        sample, nodes = after_cast(reader.outputs[0], [*nodes, reader], shapes)
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


def core_match(
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
        {"dims": dims, **fields_of(samples.grids[0]), "summed": samples.summed, **fields},
        y_channels=1 if fields["result_planes"] else -1,
    )  # fmt: skip


def operands_of(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    data, grid = node.inputs
    assert data is not None and grid is not None
    return data, grid


def dims_of(node: ir.Node, shapes: Shapes) -> int | None:
    ranks = {len(d) for d in map(shapes.dims, operands_of(node)) if d is not None}
    return next(iter(ranks)) - 2 if len(ranks) == 1 else None


def fields_of(node: ir.Node) -> dict[str, Any]:
    mode = node.attributes.get_string("mode", "linear") or ""
    return {
        "mode": _MODES.get(mode, mode),
        "padding": node.attributes.get_string("padding_mode", "zeros"),
        "align_corners": bool(node.attributes.get_int("align_corners", 0)),
    }

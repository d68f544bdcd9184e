"""Samples of maps: what is recognised around a GridSample, the most first.

    GridSample of each level -> Concat -> Mul by weights -> ReduceSum -> Reshape, Transpose    (deformable attention)
    GridSample -> Mul by weights -> ReduceSum
    GridSample

each with the views and Casts around it (views.py), and without them where the kernel cannot read or write what is
around them, or something else reads it too.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.match import only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.grid_sample.samples import (
    Samples,
    after_cast,
    core_match,
    dims_of,
    fields_of,
    operands_of,
    samples_of,
)
from onnxopt.kinds.grid_sample.stored import stored
from onnxopt.kinds.grid_sample.views import widens
from onnxopt.program.core import FLOATS

_SINCE = 16


def why_not(node: ir.Node, shapes: Shapes, opset: int) -> str | None:
    """The reason why no kernel can run this GridSample, None where one can."""
    if opset < _SINCE or len(node.inputs) != 2 or None in node.inputs:
        return f"GridSample can be fused from opset {_SINCE} on"
    names = [dtype.name if dtype is not None else "an unknown dtype" for dtype in map(shapes.dtype, operands_of(node))]
    if other := [name for name in names if name not in FLOATS]:
        return f"No kernel runs GridSample of {other[0]}"
    if dims_of(node, shapes) not in (2, 3):
        return "GridSample samples from no known number of two or three dims"
    mode = fields_of(node)["mode"]
    if mode not in ("nearest", "linear", "cubic") or (mode == "cubic" and dims_of(node, shapes) == 3):
        return f"No kernel runs GridSample with mode {mode} of {dims_of(node, shapes)} dims"
    return None


def matches(node: ir.Node, shapes: Shapes) -> Iterator[CoreMatch]:
    """What a kernel may run around a GridSample that one can run, the most nodes first."""
    for samples in samples_of(node, shapes):
        yield from stored(samples, shapes)
        yield from _plain(samples, shapes)


def _plain(samples: Samples, shapes: Shapes) -> Iterator[CoreMatch]:
    """With the Transposes of channels last around it, and without them."""
    if len(samples.grids) > 1:
        return
    (node,) = samples.grids
    data, grid = operands_of(node)
    dims = dims_of(node, shapes) or 0
    y, after = after_cast(samples.y, [], shapes)
    rest = dims - samples.summed
    turn = only_consumer(y)
    is_last = turn is not None and turn.op_type == "Transpose" and not samples.kept
    is_last = is_last and turn.attributes.get_ints("perm") == (0, *range(2, rest + 2), 1)  # type: ignore[union-attr]
    results: list[tuple[ir.Value, tuple[ir.Node, ...], bool]] = [(samples.y, (), True)]
    if is_last and turn is not None:
        results.insert(0, (turn.outputs[0], (*after, turn), False))
    of_grid = _before(grid, None, shapes)
    for first, source in dict.fromkeys((_before(data, (0, dims + 1, *range(1, dims + 1)), shapes), (data, ()))):
        for coordinates, widened in dict.fromkeys((of_grid, (grid, ()))):
            for result, further, planes in results:
                nodes = (*source, *widened, *samples.nodes, *further)
                is_turned = any(n.op_type == "Transpose" for n in source)
                fields = {"planes": not is_turned, "result_planes": planes, "kept": samples.kept and planes}
                yield core_match(samples, dims, nodes, (first, coordinates, samples.weights), result, fields)


def _before(value: ir.Value, order: tuple[int, ...] | None, shapes: Shapes) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """What widening Casts, and a Transpose of this order, compute an operand from, and these nodes, as far as nothing
    else reads their results."""
    nodes: tuple[ir.Node, ...] = ()
    while (node := value.producer()) is not None and only_consumer(value) is not None and node.domain == "":
        has_turned = any(n.op_type == "Transpose" for n in nodes)
        turns = node.op_type == "Transpose" and order is not None and node.attributes.get_ints("perm") == order
        if not (widens(node, shapes) or (turns and not has_turned)) or node.inputs[0] is None:
            break
        value, nodes = node.inputs[0], (node, *nodes)
    return value, nodes

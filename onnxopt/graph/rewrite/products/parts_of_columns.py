"""Views of a product's columns, followed from a reader back to the product.

A product y (B, S, C) is cut into parts by Split, Slice, Reshape, Transpose, Squeeze and Unsqueeze. Each element of a
part is that of one column of y, in the same row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import integers, operand
from onnxopt.graph.shapes.value_dims import dims_of, same

_ROWS = 2  # axes of a product that count rows


@dataclasses.dataclass(frozen=True)
class Part:
    """Columns of a product in the shape of a value that reads them.

    product: (B, S, C). columns: the column of each element; 1 along the axes that count rows. rows: the axes that
    count B and S. path: the views from the product to the value.
    """

    product: ir.Value
    columns: np.ndarray
    rows: tuple[int, int] = (0, 1)
    path: frozenset[ir.Node] = frozenset()


def part_of(value: ir.Value | None) -> Part | str:
    """The columns that a value is made of, or why they are not known. The product may be any value of three dims."""
    views: list[tuple[ir.Node, ir.Value]] = []
    while value is not None and (node := value.producer()) is not None and node.domain == "" and node.op_type in _VIEWS:
        views.append((node, value))
        value = node.inputs[0]
    if value is None or value.shape is None or len(value.shape) != _ROWS + 1 or not isinstance(value.shape[-1], int):
        return "there is no product of three dims with a known number of columns"
    part = Part(value, np.arange(value.shape[-1]).reshape(1, 1, -1))
    for node, result in reversed(views):
        source = node.inputs[0]
        if source is None or source.shape is None or result.shape is None:
            return f"the shapes of {node.op_type} `{node.name}` are not known"
        followed = _VIEWS[node.op_type](node, result, part)
        if followed is None:
            return f"{node.op_type} `{node.name}` does not keep rows apart from columns"
        part = dataclasses.replace(followed, path=part.path | {node})
    return part


def _transpose(node: ir.Node, result: ir.Value, part: Part) -> Part | None:
    perm = list(node.attributes.get_ints("perm", tuple(reversed(range(part.columns.ndim)))))
    rows = (perm.index(part.rows[0]), perm.index(part.rows[1]))
    return dataclasses.replace(part, columns=part.columns.transpose(perm), rows=rows)


def _reshape(node: ir.Node, result: ir.Value, part: Part) -> Part | None:
    """Columns may be divided and joined anew where rows are the first two axes on both sides."""
    before, after = dims_of(node.inputs[0]), dims_of(result)  # type: ignore[arg-type]
    counts = [count for count in after[_ROWS:] if isinstance(count, int)]
    if part.rows != (0, 1) or len(after) < _ROWS or not all(map(same, before[:_ROWS], after[:_ROWS])):
        return None
    if len(counts) != len(after) - _ROWS or math.prod(counts) != part.columns.size:
        return None
    return dataclasses.replace(part, columns=part.columns.reshape(1, 1, *counts))


def _split(node: ir.Node, result: ir.Value, part: Part) -> Part | None:
    axis = (node.attributes.get_int("axis", 0) or 0) % part.columns.ndim
    counts = [None if value.shape is None else value.shape[axis] for value in node.outputs]
    if axis in part.rows or not all(isinstance(count, int) for count in counts):
        return None
    first = sum(counts[: result.index()])  # type: ignore[arg-type]
    return _cut(part, axis, slice(first, first + counts[result.index() or 0]))  # type: ignore[operator]


def _slice(node: ir.Node, result: ir.Value, part: Part) -> Part | None:
    starts, ends, axes = (integers(operand(node, k)) for k in (1, 2, 3))
    steps = [1] * len(starts or ()) if operand(node, 4) is None else integers(operand(node, 4))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1 or axis % part.columns.ndim in part.rows:
            return None
        part = _cut(part, axis % part.columns.ndim, slice(start, end, step))
    return part


def _cut(part: Part, axis: int, bounds: slice) -> Part:
    return dataclasses.replace(part, columns=part.columns[(*[slice(None)] * axis, bounds)])


def _squeeze(node: ir.Node, result: ir.Value, part: Part) -> Part | None:
    axes = integers(operand(node, 1))
    squeezed = sorted(axis % part.columns.ndim for axis in axes or ())
    if not squeezed or any(axis in part.rows for axis in squeezed):
        return None
    rows = (
        part.rows[0] - sum(a < part.rows[0] for a in squeezed),
        part.rows[1] - sum(a < part.rows[1] for a in squeezed),
    )
    return dataclasses.replace(part, columns=part.columns.squeeze(tuple(squeezed)), rows=rows)


def _unsqueeze(node: ir.Node, result: ir.Value, part: Part) -> Part | None:
    axes = integers(operand(node, 1))
    if not axes:
        return None
    new = {axis % (part.columns.ndim + len(axes)) for axis in axes}
    old = [axis for axis in range(part.columns.ndim + len(axes)) if axis not in new]
    columns = np.expand_dims(part.columns, tuple(new))
    return dataclasses.replace(part, columns=columns, rows=(old[part.rows[0]], old[part.rows[1]]))


_VIEWS: Mapping[str, Callable[[ir.Node, ir.Value, Part], Part | None]] = {
    "Reshape": _reshape, "Transpose": _transpose, "Split": _split, "Slice": _slice, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}  # fmt: skip

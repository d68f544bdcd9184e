"""What the columns of a product's result are divided into by Splits and Slices, also of views that keep the columns.

Split(y) | Slice(y, k, k + n) | Split(Unsqueeze(y, 1))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import integers, operand

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})


@dataclasses.dataclass(frozen=True)
class Cut:
    """Columns of a product from `first` on. value: the result of the Split or Slice, whose last dim is `size`."""

    value: ir.Value
    first: int
    size: int


def cuts_of(y: ir.Value, columns: int) -> list[Cut] | None:
    """The parts of a value with this last dim; None where anything else reads the value or a view of it."""
    if y.is_graph_output() or y.shape is None or not len(y.shape):
        return None
    cuts: list[Cut] = []
    for node, position in y.uses():
        if position == 0 and keeps_columns(node, columns):
            inner = cuts_of(node.outputs[0], columns)
        else:
            inner = list(_cuts(node, len(y.shape))) if position == 0 and node.domain == "" else None
        if not inner:
            return None
        cuts += inner
    return cuts


def keeps_columns(node: ir.Node, columns: int) -> bool:
    """Whether a node is a view whose last dim is this number of columns, which its operand has too."""
    return node.op_type in _VIEWS and node.domain == "" and _last(node.outputs[0]) == columns


def _cuts(node: ir.Node, rank: int) -> Iterator[Cut]:
    if node.op_type == "Split" and node.attributes.get_int("axis", 0) in (-1, rank - 1):
        sizes = integers(operand(node, 1)) or [_last(value) for value in node.outputs]
        if all(sizes):
            firsts = np.cumsum([0, *sizes[:-1]]).tolist()
            yield from map(Cut, node.outputs, firsts, sizes)
    if node.op_type == "Slice":
        starts, axes = integers(operand(node, 1)), integers(operand(node, 3))
        steps, size = integers(operand(node, 4)) or [1], _last(node.outputs[0])
        if starts is not None and axes in ([-1], [rank - 1]) and steps == [1] and starts[0] >= 0 and size:
            yield Cut(node.outputs[0], starts[0], size)


def _last(value: ir.Value) -> int:
    """The size of the last dim, 0 where it is not known."""
    size = None if value.shape is None or not len(value.shape) else value.shape[-1]
    return size if isinstance(size, int) else 0

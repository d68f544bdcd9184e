"""Operands of a norm over groups that are parts of a row: one element a channel of every sample.

    w [N, W] -> Slice -> Unsqueeze | Reshape -> v [N, 1, 1, C], or of volumes [N, 1, 1, 1, C]

The kernel reads them there, so that neither a copy nor a product of its own is needed for each.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.fusion.core_lowering import RowSlice
from onnxopt.graph.layout.orders import RANKS
from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import ROW_MULTIPLE

_VIEWS = frozenset({"Unsqueeze", "Reshape"})


def row_slice(value: ir.Value, shapes: Shapes) -> RowSlice | None:
    """How a value [N, 1, 1, C] is a slice of a row that nodes upstream read alone; None where it is not."""
    view = value.producer()
    part = view.inputs[0] if view is not None and view.op_type in _VIEWS and view.domain == "" else None
    node = part.producer() if part is not None and is_private(part) else None
    if view is None or part is None or node is None or node.op_type != "Slice" or node.domain != "":
        return None
    source, dims = node.inputs[0], shapes.dims(value)
    row, narrow = (None if v is None else shapes.dims(v) for v in (source, part))
    if source is None or row is None or narrow is None or dims is None or len(row) != 2 or len(narrow) != 2:
        return None
    of_sample = (row[0], *(1 for _ in dims[2:]), narrow[1])
    if len(dims) not in RANKS or dims != of_sample or row[0] != narrow[0] or row[0] is None:
        return None
    bounds = [_number(v) for v in node.inputs[1:]]
    step = bounds[3] if len(bounds) > 3 else 1
    if len(bounds) < 3 or bounds[0] is None or bounds[2] not in (1, -1) or step != 1:
        return None
    width, channels, start = row[1], narrow[1], bounds[0]
    if not isinstance(width, int) or not isinstance(channels, int):
        return None
    first = start + width if start < 0 else start
    if first % ROW_MULTIPLE or width % ROW_MULTIPLE or not 0 <= first <= width - channels:
        return None
    return RowSlice(source, width, first, (node, view))


def _number(value: ir.Value | None) -> int | None:
    if value is None or not is_constant(value) or value.const_value is None or value.const_value.size != 1:
        return None
    return int(value.const_value.numpy().item())

"""Scatters that write neighbouring rows in order.

    ScatterND(x, every position in order, y)             -> y
    ScatterND(x, [[s], [s + 1], .., [s + m - 1]], y)     -> Concat(x[:s], y, x[s + m:])
    ScatterElements(x, s, s + 1, .. along the axis, y)   -> the same along the axis

Exporters write `mask[:, :, :, :n] = ...` so, and x[:, 1:] += .., with a Transpose before and one after it. A Concat is
part of the kernels around it. A scatter that writes few of many rows stays: ONNX Runtime may write them in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.gathers import places
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope

_OPERATORS = ("ScatterND", "ScatterElements")
_SHARE = 4  # of all rows, of which a scatter has to write one at least


class EveryElementWritten(RewriteRuleClassBase):
    """ScatterND of every element in order, that reduces nothing."""

    def __init__(self, values: IndexValues) -> None:
        super().__init__()
        self._values = values

    def pattern(self, op, x, indices, updates):
        return op.ScatterND(x, indices, updates, _allow_other_attributes=True, _outputs=["y"])

    def check(
        self, context: MatchContext, x: ir.Value, indices: ir.Value, updates: ir.Value, y: ir.Value
    ) -> MatchResult:
        result, node = MatchResult(), y.producer()
        if node is None or node.attributes.get_string("reduction", "none") != "none":
            return result.fail("ScatterND computes with the elements that are there")
        positions, data, written = self._values.positions(indices), self._values.dims(x), self._values.dims(updates)
        if positions is None or data is None or written is None:
            return result.fail("the positions, or the dims of the data, are not known")
        if written != data or places(positions, data, written) != list(range(len(positions))):
            return result.fail("the positions do not count every element in order")
        return result

    def rewrite(self, op, x: ir.Value, indices: ir.Value, updates: ir.Value, y: ir.Value):
        return op.Identity(updates)


class _Rows(NamedTuple):
    """Rows from `first` to before `end` along an axis of `length`."""

    axis: int
    first: int
    end: int
    length: int


class RowsWritten(RewriteRuleClassBase):
    """A scatter that replaces neighbouring rows. operator: ScatterND or ScatterElements."""

    def __init__(self, operator: str, values: IndexValues) -> None:
        super().__init__(f"rows_written_by_{operator}")
        self._operator, self._values = operator, values

    def pattern(self, op, x, indices, updates):
        return getattr(op, self._operator)(x, indices, updates, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, y: ir.Value, **_: object) -> MatchResult:
        result, rows = MatchResult(), self._rows(y)
        return result.fail(rows) if isinstance(rows, str) else result

    def rewrite(self, op, x: ir.Value, indices: ir.Value, updates: ir.Value, y: ir.Value):
        rows = self._rows(y)
        assert not isinstance(rows, str)

        def part(first: int, end: int) -> list[ir.Value]:
            bounds = [op.Constant(value_ints=[number]) for number in (first, end, rows.axis)]
            return [op.Slice(x, *bounds)] if first < end else []

        return op.Concat(*part(0, rows.first), updates, *part(rows.end, rows.length), axis=rows.axis)

    def _rows(self, y: ir.Value) -> _Rows | str:
        """The rows that the scatter writes; or why it does not write neighbours in order, or writes few."""
        node = y.producer()
        assert node is not None
        if node.attributes.get_string("reduction", "none") != "none":
            return f"{node.op_type} computes with the elements that are there"
        x, indices, updates = node.inputs
        data, written = self._values.dims(x), self._values.dims(updates)
        if not data or written is None or len(written) != len(data):
            return "the updates are no rows of the data, or dims are not known"
        axis = node.attributes.get_int("axis", 0) % len(data) if node.op_type == "ScatterElements" else 0
        length, count = data[axis], written[axis]
        if (
            not isinstance(length, int)
            or not isinstance(count, int)
            or any(a != b for k, (a, b) in enumerate(zip(data, written, strict=True)) if k != axis)
        ):
            return "the updates are no whole rows, or their number is not known"
        first = self._first(node, indices, axis)
        if first is None:
            return "the positions do not count neighbouring rows"
        first += length if first < 0 else 0
        if first < 0 or first + count > length or _SHARE * count < length:
            return "rows outside of the data are written, or few"
        return _Rows(axis, first, first + count, length)

    def _first(self, node: ir.Node, indices: ir.Value | None, axis: int) -> int | None:
        """The first of neighbouring rows that the indices count, None where they do not."""
        if node.op_type == "ScatterND":
            positions, dims = self._values.positions(indices), self._values.dims(indices)
            affine = positions[0] if positions is not None and len(positions) == 1 else None
            if affine is None or dims is None or len(dims) != 2:
                return None
            counts = affine.widened(1)[0] == 1 or dims[0] == 1
            return affine.offset if counts and isinstance(affine.offset, int) else None
        if indices is None or not is_constant(indices):
            return None
        array = indices.const_value.numpy()  # type: ignore[union-attr]
        if array.size == 0:
            return None
        first = int(array.reshape(-1)[0])
        order = np.arange(array.shape[axis]).reshape([-1 if k == axis else 1 for k in range(array.ndim)])
        return first if bool((array == first + order).all()) else None


def _rules(scope: Scope) -> Sequence[Rooted]:
    values = scope.index_values
    return [
        Rooted("ScatterND", EveryElementWritten.rule(values)),
        *(Rooted(operator, RowsWritten.rule(operator, values)) for operator in _OPERATORS),
    ]


RULES = (RuleSet(_rules),)


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph, or one in it, has a scatter."""
    return any(node.op_type in _OPERATORS for node in graph.all_nodes())

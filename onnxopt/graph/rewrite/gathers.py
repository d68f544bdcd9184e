"""What is gathered by positions that are known becomes a view, a slice or a row, and conditions that always hold go.

    GatherND(x, every position in order)   -> Unsqueeze(x, axes)
    Gather(Flatten(x), every position)     -> Unsqueeze(x, axes)
    GatherND(x, [[k], [k + 1], ...])       -> Slice(x, k, k + n)      in front of a Transpose that computes x
    Gather(table, k everywhere)            -> row k of the table
    Gather(table, Range(k, k + n, 1))      -> Unsqueeze(Slice(table, k, k + n), axes)
    And(x, what always holds)              -> x
    Where(what always holds, x, y)         -> x               y where the condition never holds
    Expand(x, computed shape)              -> x               where every reader broadcasts

The table is a constant. Exporters of dynamic graphs write masks and embeddings this way, and leave such arithmetic
in the graph, one small kernel a node. A result may lose axes along which it repeats, where every reader broadcasts it.
An index behind the last row is an error. Slice stops at the last row instead, and then has fewer rows than the reader's
other operand, which is an error too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import sympy
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import is_constant, new_integers
from onnxopt.graph.passes.equal_views import ViewOfView
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.dims_of_inputs import sources_of
from onnxopt.graph.rewrite.masks.index_functions import FLOATS, Affine, Truth
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope
from onnxopt.graph.shapes.dims import Dim, Dims, minimum, product
from onnxopt.graph.shapes.narrowed import narrowed

REPEATS = "a reader needs the axes along which the result repeats"


class _OfGatherND(RewriteRuleClassBase):
    def __init__(self, values: IndexValues) -> None:
        super().__init__()
        self._values = values

    def pattern(self, op, x, indices):
        return op.GatherND(x, indices, _allow_other_attributes=True, _outputs=["y"])


class EveryElement(_OfGatherND):
    """GatherND of every element in order."""

    def check(self, context: MatchContext, x: ir.Value, indices: ir.Value, y: ir.Value) -> MatchResult:
        view = self._view(x, indices, y)
        return MatchResult().fail(view) if isinstance(view, str) else MatchResult()

    def _view(self, x: ir.Value, indices: ir.Value, y: ir.Value) -> tuple[ir.Value, list[int], Dims] | str:
        """The data, the axes that a view of them adds, and the dims of the view; or why there is no such view."""
        counted, whole = self._counted(x, indices, y), self._values.dims(y)
        if isinstance(counted, str):
            return counted
        source, positions, ones = counted
        data = self._values.dims(source)
        if positions is None or data is None or whole is None:
            return "the positions, or the dims of the data, are not known"
        whole = whole[: len(whole) - ones]
        axes = places(positions, data, whole)
        if axes is None:
            return "the positions do not count every element in order"
        dims = _at(axes, data, whole)
        if _narrowed(y, (*dims, *[1] * ones), self._values) is None:
            return REPEATS
        return source, [k for k in range(len(whole) - len(data) + len(axes)) if k not in axes], dims

    def _counted(
        self, x: ir.Value, indices: ir.Value, y: ir.Value
    ) -> tuple[ir.Value, Sequence[Affine | None] | None, int] | str:
        """The data, the position along each dim that is counted, and how many dims of 1 follow the result's."""
        node = y.producer()
        if node is None or node.attributes.get_int("batch_dims", 0) != 0:
            return "GatherND has batch dims"
        return x, self._values.positions(indices), 0

    def rewrite(self, op, x: ir.Value, indices: ir.Value, y: ir.Value):
        counted, view_of = self._counted(x, indices, y), self._view(x, indices, y)
        assert not isinstance(counted, str) and not isinstance(view_of, str)
        (_, _, ones), (source, axes, dims) = counted, view_of
        view = op.Unsqueeze(source, new_integers(op, axes)) if axes else op.Identity(source)
        if ones:
            self._values.inferred.correct(view, dims)
            view = op.Unsqueeze(view, new_integers(op, [len(dims)]))
        return _noted(view, y, (*dims, *[1] * ones), self._values)


class EveryFlatElement(EveryElement):
    """Gather of every element in order from the data with their first dims merged: b * S + k from [B * S]."""

    def pattern(self, op, x, indices):
        flat = pattern.OrValue([op.Flatten(x, _allow_other_attributes=True), op.Reshape(x, _allow_other_inputs=True)])
        return op.Gather(flat, indices, _allow_other_attributes=True, _outputs=["y"])

    def _counted(
        self, x: ir.Value, indices: ir.Value, y: ir.Value
    ) -> tuple[ir.Value, Sequence[Affine | None] | None, int] | str:
        node, index, data = y.producer(), self._values.of(indices), self._values.dims(x)
        flat = None if node is None else self._values.dims(node.inputs[0])
        if node is None or not isinstance(index, Affine) or index.offset != 0 or not data or not flat:
            return "the positions, or the dims of the data, are not known"
        if node.attributes.get_int("axis", 0) not in (0, -len(flat)):
            return "Gather does not read rows"
        merged = next((n for n in range(len(data), 1, -1) if product(data[:n]) == flat[0]), 0)
        ones = int(merged == len(data) and flat[1:] == (1,))
        if not merged or (flat[1:] != data[merged:] and not ones):
            return "the first dims of the data are not merged"
        strides = [product(data[k + 1 : merged]) for k in range(merged)]
        axes = index.widened(len(self._values.dims(indices) or ()))
        if any(step not in (0, *strides) for step in axes):
            return "the positions do not count every element in order"
        return x, [Affine(0, tuple(int(a == s and d != 1) for a in axes)) for s, d in zip(strides, data)], ones


def places(positions: Sequence[Affine | None], data: Dims, whole: Dims) -> list[int] | None:
    """By dim of the data that is counted, the axis of the result along which its position is the index; else None."""
    rank, axes = len(whole) - (len(data) - len(positions)), list[int]()
    for position, length in zip(positions, data, strict=False):
        if position is None or position.offset != 0:
            return None
        first = axes[-1] + 1 if axes else 0
        coefficients = position.widened(rank)
        counted = [k for k in range(rank) if coefficients[k]]
        if not counted and length == 1:
            counted = [k for k in range(first, rank) if whole[k] == 1][:1]
        elif any(coefficients[k] != 1 for k in counted):
            return None
        if len(counted) != 1 or counted[0] < first or whole[counted[0]] != length:
            return None
        axes += counted
    return axes


def _at(axes: Sequence[int], data: Dims, whole: Dims) -> Dims:
    """The dims of a view with the data's dims at these axes, and those that are not counted behind the others."""
    rest = data[len(axes) :]
    dims: list[Dim] = [1] * (len(whole) - len(rest))
    for axis, length in zip(axes, data, strict=False):
        dims[axis] = length
    return (*dims, *rest)


class KnownPart(_OfGatherND):
    """GatherND of positions that follow each other along the first axis, as of some heads among those of q, k and v."""

    def check(self, context: MatchContext, x: ir.Value, indices: ir.Value, y: ir.Value) -> MatchResult:
        part = self._part(x, indices, y)
        return MatchResult().fail(part) if isinstance(part, str) else MatchResult()

    def _part(self, x: ir.Value, indices: ir.Value, y: ir.Value) -> tuple[int, int] | str:
        """Begin and end of the part, or why there is none."""
        node, data, index_dims = y.producer(), self._values.dims(x), self._values.dims(indices)
        if node is None or node.attributes.get_int("batch_dims", 0) != 0:
            return "GatherND has batch dims"
        positions = self._values.positions(indices)
        if not data or not isinstance(data[0], int) or index_dims is None or positions is None:
            return "the positions, or the dims of the data, are not known"
        if len(index_dims) != 2 or len(positions) != 1 or not isinstance(index_dims[0], int):
            return "the positions are not a known number along the first axis"
        position, count = positions[0], index_dims[0]
        if position is None or not isinstance(position.offset, int):
            return "the positions are not known"
        if position.widened(1) != (1,) and count != 1:
            return "the positions do not follow each other"
        begin = position.offset + (data[0] if position.offset < 0 else 0)
        return (begin, begin + count) if 0 <= begin <= data[0] - count else "the data has no such positions"

    def rewrite(self, op, x: ir.Value, indices: ir.Value, y: ir.Value):
        part, node = self._part(x, indices, y), x.producer()
        assert not isinstance(part, str)
        begin, end = (new_integers(op, [k]) for k in part)
        order = (
            None if node is None or node.domain != "" or node.op_type != "Transpose" else node.attributes.get("perm")
        )
        if node is None or order is None:
            return op.Slice(x, begin, end, new_integers(op, [0]))
        perm = order.as_ints()
        return op.Transpose(op.Slice(node.inputs[0], begin, end, new_integers(op, [perm[0]])), perm=perm)


class KnownRows(RewriteRuleClassBase):
    """Gather of one row of a table for all positions, or of rows that follow each other. graph: the main one."""

    def __init__(self, values: IndexValues, graph: ir.Graph) -> None:
        super().__init__()
        self._values, self._sources = values, sources_of(graph, values.inferred)

    def pattern(self, op, table, indices):
        return op.Gather(table, indices, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, table: ir.Value, indices: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        node, tensor = y.producer(), table.const_value
        if not is_constant(table) or tensor is None or tensor.dtype not in FLOATS:
            return result.fail("the table is not a constant of floats")
        if node is None or node.attributes.get_int("axis", 0) not in (0, -len(tensor.shape)):
            return result.fail("Gather does not read rows")
        index, dims = self._values.of(indices), self._values.dims(indices)
        if not isinstance(index, Affine) or not isinstance(index.offset, int) or dims is None:
            return result.fail("the rows are not known")
        shape = tensor.shape.numpy()
        if index.constant:
            if not -shape[0] <= index.offset < shape[0]:
                return result.fail(f"the table has no row {index.offset}")
            narrow: Dims = (1,) * len(dims)
        else:
            axis = _counted(index, len(dims))
            if axis is None:
                return result.fail("the rows do not follow each other along one axis")
            length = self._readable(dims[axis], shape[0] - index.offset)
            if length is None:
                return result.fail("the number of rows is no dim of an input, or exceeds the table")
            narrow = _along(axis, minimum(length, shape[0] - index.offset), len(dims))
        return result if _narrowed(y, (*narrow, *shape[1:]), self._values) is not None else result.fail(REPEATS)

    def rewrite(self, op, table: ir.Value, indices: ir.Value, y: ir.Value):
        index, dims, tensor = self._values.of(indices), self._values.dims(indices), table.const_value
        assert isinstance(index, Affine) and isinstance(index.offset, int) and dims is not None and tensor is not None
        shape, rank = tensor.shape.numpy(), len(dims)
        if index.constant:
            row = np.array(tensor.numpy()[index.offset]).reshape(*[1] * rank, *shape[1:])
            constant = op.Constant(value=ir.Tensor(row, dtype=tensor.dtype))
            return _noted(constant, y, row.shape, self._values)
        axis = _counted(index, rank)
        assert axis is not None
        length = self._readable(dims[axis], shape[0] - index.offset)
        assert length is not None
        rows = op.Slice(
            table, new_integers(op, [index.offset]), self._end(op, length, index.offset), new_integers(op, [0])
        )
        counted = minimum(length, shape[0] - index.offset)
        self._values.inferred.correct(rows, (counted, *shape[1:]))
        if rank > 1:
            rows = op.Unsqueeze(rows, new_integers(op, [k for k in range(rank) if k != axis]))
        return _noted(rows, y, (*_along(axis, counted, rank), *shape[1:]), self._values)

    def _readable(self, length: Dim, left: int) -> Dim | None:
        """A number, or a dim of an input, that cut off at the `left` last rows of a table is as long as `length`."""
        if isinstance(length, int):
            return length if length <= left else None
        parts = length.args if isinstance(length, sympy.Min) else ()
        same = (
            d
            for d in (length, *parts)
            if not isinstance(d, sympy.Integer) and minimum(d, left) == minimum(length, left)
        )
        return next((d for d in same if d in self._sources), None) if left > 1 else None

    def _end(self, op, length: Dim, offset: int):
        """offset + length as a tensor of one element."""
        if isinstance(length, int):
            return new_integers(op, [offset + length])
        value, axis = self._sources[length]
        end = op.Shape(value, start=axis, end=axis + 1)
        return op.Add(end, new_integers(op, [offset])) if offset else end


def _counted(index: Affine, rank: int) -> int | None:
    """The one axis along which an index counts up from 0 or more; None where there is none, or several are."""
    axes = [k for k, coefficient in enumerate(index.widened(rank)) if coefficient]
    return axes[0] if len(axes) == 1 and index.widened(rank)[axes[0]] == 1 and index.never_negative() else None


def _along(axis: int, length: Dim, rank: int) -> Dims:
    """Dims of which all but one are 1."""
    return tuple(length if k == axis else 1 for k in range(rank))


class Certain(RewriteRuleClassBase):
    """And with a condition that holds at every run. certain: its position among the operands."""

    def __init__(self, values: IndexValues, certain: int) -> None:
        super().__init__(f"Certain{certain}")
        self._values, self._certain = values, certain

    def pattern(self, op, x, condition):
        return op.And(*((x, condition) if self._certain else (condition, x)), _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, condition: ir.Value, y: ir.Value) -> MatchResult:
        truth, dims = self._values.of(condition), self._values.dims(x)
        if not isinstance(truth, Truth) or not truth.always:
            return MatchResult().fail("the condition may not hold")
        if dims is None or _narrowed(y, dims, self._values) is None:
            return MatchResult().fail(REPEATS)
        return MatchResult()

    def rewrite(self, op, x: ir.Value, condition: ir.Value, y: ir.Value):
        dims = self._values.dims(x)
        assert dims is not None
        return _noted(op.Identity(x), y, dims, self._values)


class CertainChoice(RewriteRuleClassBase):
    """Where of a condition that holds at every run, or at none."""

    def __init__(self, values: IndexValues) -> None:
        super().__init__()
        self._values = values

    def pattern(self, op, condition, a, b):
        return op.Where(condition, a, b, _outputs=["y"])

    def check(self, context: MatchContext, condition: ir.Value, a: ir.Value, b: ir.Value, y: ir.Value) -> MatchResult:
        truth = self._values.of(condition)
        if not isinstance(truth, Truth) or not (truth.always or truth.never):
            return MatchResult().fail("the condition may hold or not")
        dims = self._values.dims(a if truth.always else b)
        if dims is None or _narrowed(y, dims, self._values) is None:
            return MatchResult().fail(REPEATS)
        return MatchResult()

    def rewrite(self, op, condition: ir.Value, a: ir.Value, b: ir.Value, y: ir.Value):
        truth = self._values.of(condition)
        assert isinstance(truth, Truth)
        chosen = a if truth.always else b
        dims = self._values.dims(chosen)
        assert dims is not None
        return _noted(op.Identity(chosen), y, dims, self._values)


class ReadersRepeat(RewriteRuleClassBase):
    """Expand to a computed shape, where every reader broadcasts what is expanded itself."""

    def __init__(self, values: IndexValues) -> None:
        super().__init__()
        self._values = values

    def pattern(self, op, x, shape):
        return op.Expand(x, shape, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, shape: ir.Value, y: ir.Value) -> MatchResult:
        if is_constant(shape):
            return MatchResult().fail("the shape is a constant, so kernels fuse the Expand")
        dims = self._values.dims(x)
        if not y.uses() or dims is None or _narrowed(y, dims, self._values) is None:
            return MatchResult().fail(REPEATS)
        return MatchResult()

    def rewrite(self, op, x: ir.Value, shape: ir.Value, y: ir.Value):
        dims = self._values.dims(x)
        assert dims is not None
        return _noted(op.Identity(x), y, dims, self._values)


def _narrowed(y: ir.Value, dims: Dims, values: IndexValues) -> dict[ir.Value, Dims] | None:
    """The values whose dims change where y gets these, None where a reader needs those that it has."""
    return {} if values.dims(y) == dims else narrowed(y, dims, values.inferred)


def _noted(result: ir.Value, y: ir.Value, dims: Dims, values: IndexValues) -> ir.Value:
    """The result in place of y, after the dims of all values that change with it were noted."""
    for value, smaller in (_narrowed(y, dims, values) or {}).items():
        values.inferred.correct(value, smaller)
    values.inferred.correct(result, dims)
    return result


def _rules(scope: Scope) -> Sequence[Rooted]:
    values = scope.index_values
    return [
        Rooted("GatherND", EveryElement.rule(values)),
        Rooted("GatherND", KnownPart.rule(values)),
        Rooted("Gather", EveryFlatElement.rule(values)),
        *(Rooted("Reshape", ViewOfView.rule("Reshape", inner)) for inner in ("Unsqueeze", "Reshape")),
        Rooted("Gather", KnownRows.rule(values, scope.graph)),
        *(Rooted("And", Certain.rule(values, position)) for position in (0, 1)),
        Rooted("Where", CertainChoice.rule(values)),
        Rooted("Expand", ReadersRepeat.rule(values)),
    ]


RULES = (RuleSet(_rules),)


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph has nodes that the rules of this file are for, as far as that shows without shapes."""
    return any(
        node.op_type in ("GatherND", "And", "Where", "Expand") or (node.op_type == "Gather" and _may_be_view(node))
        for node in graph.all_nodes()
    )


def _may_be_view(node: ir.Node) -> bool:
    data, indices = node.inputs[:2]
    if data is None or indices is None:
        return False
    flat, tensor = data.producer(), data.const_value if is_constant(data) else None
    if tensor is not None:
        return tensor.dtype in FLOATS and indices.producer() is not None
    return flat is not None and flat.op_type in ("Flatten", "Reshape")

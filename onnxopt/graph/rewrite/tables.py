"""Rows of several tables as rows of one table, and points of a map as one Gather.

    Concat(.., Unsqueeze(Gather(t1, x[:, 1]), 1), Unsqueeze(Gather(t2, x[:, 2]), 1), ..)
        -> Concat(.., Gather([t1; t2], f(x[:, 1:3])), ..)                  f(i) = i + first row of its table
    Concat(.., Gather(t1, i), Gather(t2, j), ..)
        -> Concat(.., Reshape(Gather([t1; t2], f([i, j]))), ..)            joined along the last axis
    GatherND(Transpose(x, [1, 2, 0]), points)
        -> Transpose(Gather(Flatten of two dims of x, points), [1, 0])

Recommenders look up a row for each feature, and read a triangle of the products of all pairs: every column, every row
and every view was a launch of its own. Several Concats may read the same rows. An index from the end of its table
counts from there as before, and one outside of its table is outside of the joined table, so that it is still an error,
or zeros where a provider says none.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import constant, integers, is_constant, new_integers
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import Pass, RuleSet, Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.dims import Dims
from onnxopt.graph.shapes.infer import Knowledge

_MIN_TABLES = 3  # fewer Gathers take as long as the arithmetic on their indices
_VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
_MAX_ELEMENTS = 2**31 - 1  # of a result of ONNX Runtime's Gather


@dataclasses.dataclass(frozen=True)
class _Lookup:
    """Gather(table, ids), in whatever view. dims: of the indices as the Concat reads their rows."""

    gather: ir.Node
    table: ir.Value
    ids: ir.Value
    dims: Dims

    @property
    def rows(self) -> int:
        return int(self.table.const_value.shape.numpy()[0])  # type: ignore[union-attr]

    @property
    def kind(self) -> tuple[object, ...]:
        """What the lookups of one table have in common."""
        tensor = self.table.const_value
        assert tensor is not None
        return self.dims, self.ids.dtype, tensor.dtype, tensor.shape.numpy()[1]


@dataclasses.dataclass(frozen=True)
class _Run:
    """Neighbouring parts of a Concat that are lookups, from part `first` on. by_row: joined along the last axis."""

    concat: ir.Node
    first: int
    lookups: tuple[_Lookup, ...]
    by_row: bool

    @property
    def key(self) -> tuple[object, ...]:
        """What runs that read the same rows have in common."""
        return tuple(one.gather for one in self.lookups), self.lookups[0].kind


def merge(graph: ir.Graph, inferred: Knowledge, joiner: Joiner) -> int:
    """Change such Concats in place; how many tables there are now in place of others. Nodes without use remain."""
    concats = [node for node in graph if (node.domain, node.op_type) == ("", "Concat")]
    alike: dict[tuple[object, ...], list[_Run]] = collections.defaultdict(list)
    for run in (run for concat in concats for run in _runs(concat, inferred)):
        alike[run.key].append(run)
    merged = {key: runs for key, runs in alike.items() if _may_merge(runs)}
    rows: dict[tuple[object, ...], ir.Value] = {}
    of_concat: dict[ir.Node, list[_Run]] = collections.defaultdict(list)
    for run in itertools.chain.from_iterable(merged.values()):
        of_concat[run.concat].append(run)
    for concat in (node for node in concats if node in of_concat):
        inputs: list[ir.Value | None] = list(concat.inputs)
        for run in sorted(of_concat[concat], key=lambda run: run.first, reverse=True):
            if run.key not in rows:
                rows[run.key] = _merged(graph, concat, run.lookups, joiner, inferred)
            inputs[run.first : run.first + len(run.lookups)] = [_joined(graph, run, rows[run.key])]
        _replace(graph, concat, inputs)
    return len(merged)


def _runs(concat: ir.Node, inferred: Knowledge) -> Iterator[_Run]:
    rank = len(inferred.dims(concat.outputs[0]) or ())
    axis = concat.attributes.get_int("axis", 0) % rank if rank else 0
    found, first = [_lookup(value, axis, rank, inferred) for value in concat.inputs], 0
    for kind, group in itertools.groupby(found, lambda one: None if one is None else one.kind):
        run = list(group)
        if kind is not None:
            yield _Run(concat, first, tuple(one for one in run if one is not None), axis == rank - 1)
        first += len(run)


def _joined(graph: ir.Graph, run: _Run, rows: ir.Value) -> ir.Value:
    """The rows [.., n, D] as the Concat reads them: [.., n D] where it joins them along the last axis."""
    if not run.by_row:
        return rows
    new, tensor = NewNodes(graph, run.concat), run.lookups[0].table.const_value
    assert tensor is not None
    columns = len(run.lookups) * tensor.shape.numpy()[1]
    return new.add("Reshape", [rows, new.constant(np.array([0] * len(run.lookups[0].dims) + [columns]))], rows.dtype)


def _replace(graph: ir.Graph, concat: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Put a Concat of these in place of one."""
    old, attributes = concat.outputs[0], list(concat.attributes.values())
    new = NewNodes(graph, concat)
    several = len(inputs) > 1
    result = new.add("Concat" if several else "Identity", inputs, old.dtype, attributes if several else ())
    result.shape, result.name, old.name = old.shape, old.name, None
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    graph.remove(concat, safe=True)


def _lookup(part: ir.Value | None, axis: int, rank: int, inferred: Knowledge) -> _Lookup | None:
    """The lookup that a part of a Concat along this axis is, the last one or a dim of 1 before it; None for others."""
    dims = inferred.dims(part)
    if part is None or dims is None or axis < rank - 2 or (axis == rank - 2 and dims[-2] != 1):
        return None
    node, whole = part.producer(), dims[:axis]
    while node is not None and node.op_type in _VIEWS and node.domain == "" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or (node.domain, node.op_type) != ("", "Gather") or node.attributes.get_int("axis", 0) != 0:
        return None
    table, ids = node.inputs[0], node.inputs[1]
    of_ids = inferred.dims(ids)
    if table is None or ids is None or of_ids is None or not is_constant(table) or is_constant(ids):
        return None
    assert table.const_value is not None
    shape, dtype = table.const_value.shape.numpy(), table.const_value.dtype
    if not (dtype.is_floating_point() or dtype.is_integer()) or dtype.bitwidth < 8:
        return None
    if len(shape) != 2 or dims[-1] != shape[1] or ids.dtype not in _INDICES:
        return None
    if [d for d in of_ids if d != 1] != [d for d in whole if d != 1] or _view(of_ids, whole).count(-1) > 1:
        return None
    return _Lookup(node, table, ids, whole)


def _may_merge(runs: Sequence[_Run]) -> bool:
    """Whether there are enough, nothing else reads the rows or the tables, and nothing becomes too large."""
    lookups, concats = runs[0].lookups, {run.concat for run in runs}
    gathers, tables = {one.gather for one in lookups}, dict.fromkeys(one.table for one in lookups)
    if len(lookups) < _MIN_TABLES or any(not {*table.consumers()} <= gathers for table in tables):
        return False
    if any(table.is_graph_output() or table.graph is not lookups[0].gather.graph for table in tables):
        return False
    if not all(_is_read_by(gather.outputs[0], concats) for gather in gathers):
        return False
    shape = lookups[0].table.const_value.shape.numpy()  # type: ignore[union-attr]
    stated = [dim for dim in lookups[0].dims if isinstance(dim, int)]
    rows = sum(one.rows for one in lookups)
    return len(lookups) * math.prod(stated) * shape[1] <= _MAX_ELEMENTS and 2 * rows <= _MAX_ELEMENTS


def _is_read_by(value: ir.Value, concats: set[ir.Node]) -> bool:
    """Whether these Concats alone read a value, perhaps by way of views."""
    readers = [n for n in value.consumers() if n not in concats]
    views = all(n.op_type in _VIEWS and n.domain == "" and _is_read_by(n.outputs[0], concats) for n in readers)
    return views and not value.is_graph_output()


def _merged(
    graph: ir.Graph, place: ir.Node, lookups: Sequence[_Lookup], joiner: Joiner, inferred: Knowledge
) -> ir.Value:
    """The rows of all lookups, [.., n, D]."""
    new, tables = NewNodes(graph, place), list(dict.fromkeys(one.table for one in lookups))
    sizes = {one.table: one.rows for one in lookups}
    begin = dict(zip(tables, itertools.accumulate((sizes[t] for t in tables), initial=0), strict=False))
    tensors = [t.const_value for t in tables if t.const_value is not None]
    whole = new.held(joiner.rows(tensors, f"{tables[0].name}/joined")) if len(tensors) > 1 else tables[0]
    dtype = lookups[0].ids.dtype
    assert dtype is not None

    def row(numbers: Iterator[int]) -> ir.Value:
        return new.constant(np.array(list(numbers), dtype.numpy()))

    ids = _together(new, lookups, inferred)
    zero, count = row(iter([0])), row(sizes[one.table] for one in lookups)
    from_end = new.add("Where", [_less(new, ids, zero), new.add("Add", [ids, count], dtype), ids], dtype)
    inside = new.add("And", [new.add("Not", [_less(new, from_end, zero)], ir.DataType.BOOL),
                             _less(new, from_end, count)], ir.DataType.BOOL)  # fmt: skip
    placed = new.add("Add", [from_end, row(begin[one.table] for one in lookups)], dtype)
    at = new.add("Where", [inside, placed, row(iter([sum(sizes.values())]))], dtype)
    return new.add("Gather", [whole, at], tensors[0].dtype, [ir.AttrInt64("axis", 0)])


def _less(new: NewNodes, a: ir.Value, b: ir.Value) -> ir.Value:
    return new.add("Less", [a, b], ir.DataType.BOOL)


def _together(new: NewNodes, lookups: Sequence[_Lookup], inferred: Knowledge) -> ir.Value:
    """The indices of all lookups along a last axis."""
    dtype, columns = lookups[0].ids.dtype, [_column(one, inferred) for one in lookups]
    sources = {column[0] for column in columns if column is not None}
    if None in columns or len(sources) > 1:
        views = [new.constant(np.array([*_view(inferred.dims(one.ids) or (), one.dims), 1])) for one in lookups]
        apart = [new.add("Reshape", [one.ids, view], dtype) for one, view in zip(lookups, views, strict=True)]
        return new.add("Concat", apart, dtype, [ir.AttrInt64("axis", -1)])
    (source,), numbers = sources, [column[1] for column in columns if column is not None]
    dims = inferred.dims(source) or ()
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        if dims[-1] == len(numbers):
            return source
        bounds = [new.constant(np.array([n], np.int64)) for n in (numbers[0], numbers[-1] + 1, len(dims) - 1)]
        return new.add("Slice", [source, *bounds], dtype)
    picked = new.constant(np.array(numbers, np.int64))
    return new.add("Gather", [source, picked], dtype, [ir.AttrInt64("axis", len(dims) - 1)])


def _column(lookup: _Lookup, inferred: Knowledge) -> tuple[ir.Value, int] | None:
    """The tensor of which indices are one position along the last axis, and that position; None for others."""
    node = lookup.ids.producer()
    source = None if node is None or node.domain != "" or not node.inputs else node.inputs[0]
    dims = inferred.dims(source)
    if node is None or source is None or not dims or dims[:-1] != lookup.dims or not isinstance(dims[-1], int):
        return None
    position = _POSITIONS[node.op_type](node, lookup.ids, len(dims) - 1) if node.op_type in _POSITIONS else None
    return None if position is None or not -dims[-1] <= position < dims[-1] else (source, position % dims[-1])


def _of_gather(node: ir.Node, ids: ir.Value, last: int) -> int | None:
    position = constant(node.inputs[1])
    fits = position is not None and position.ndim == 0 and node.attributes.get_int("axis", 0) in (last, -1)
    return int(position) if fits and position is not None else None


def _of_slice(node: ir.Node, ids: ir.Value, last: int) -> int | None:
    numbers = [integers(value) for value in node.inputs[1:]]
    if len(numbers) < 3 or any(n is None or len(n) != 1 for n in numbers):
        return None
    start, end, axis, *step = (n[0] for n in numbers if n is not None)
    is_one = end == start + 1 or (start == -1 and end > _MAX_ELEMENTS)
    return start if is_one and axis in (last, -1) and step in ([], [1]) else None


def _of_split(node: ir.Node, ids: ir.Value, last: int) -> int | None:
    is_last = node.attributes.get_int("axis", 0) in (last, -1)
    every = all(v.shape is not None and v.shape[-1] == 1 for v in node.outputs)
    return ids.index() if is_last and every else None


_POSITIONS = {"Gather": _of_gather, "Slice": _of_slice, "Split": _of_split}


def _view(dims: Dims, whole: Dims) -> list[int]:
    """The shape for a Reshape of a tensor of these dims to the whole ones, which differ by dims of 1."""
    copied = [0 if k < len(dims) and dims[k] == d else d for k, d in enumerate(whole)]
    return [d if isinstance(d, int) else -1 for d in copied]


class PointsOfTranspose(RewriteRuleClassBase):
    """GatherND of constant points of neighbouring dims that a Transpose moved to the front."""

    def pattern(self, op, x, points):
        moved = op.Transpose(x, _allow_other_attributes=True, _outputs=["moved"])
        return op.GatherND(moved, points, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x, points, moved, y) -> MatchResult:
        result, found = MatchResult(), _points(x, points, moved, y)
        return result.fail(found) if isinstance(found, str) else result

    def rewrite(self, op, x, points, moved, y):
        found = _points(x, points, moved, y)
        assert not isinstance(found, str)
        first, flat, dims = found
        gathered = op.Gather(op.Reshape(x, new_integers(op, dims)), new_integers(op, flat), axis=first)
        return op.Transpose(gathered, perm=[first, *(k for k in range(len(dims)) if k != first)])


def _points(x: ir.Value, points: ir.Value, moved: ir.Value, y: ir.Value) -> tuple[int, list[int], list[int]] | str:
    """The first dim of the points, the points by number, and the dims of x with those of the points as one."""
    array, perm = constant(points), moved.producer().attributes.get_ints("perm", ())  # type: ignore[union-attr]
    if array is None or array.ndim != 2 or y.producer().attributes.get_int("batch_dims", 0) != 0:  # type: ignore[union-attr]
        return "the points are not a constant list"
    count = array.shape[1]
    if x.shape is None or not 1 < count <= len(perm):
        return "points have one dim"
    first, rest = perm[0], list(perm[count:])
    if list(perm[:count]) != list(range(first, first + count)) or rest != sorted(rest):
        return "the dims of the points are not neighbours, or others change their order"
    known = [dim for dim in x.shape[first:] if isinstance(dim, int) and dim > 0]
    if len(known) != len(perm) - first:
        return "the dims of the points, or those after them, are not known"
    sizes = known[:count]
    if (array < -np.array(sizes)).any() or (array >= np.array(sizes)).any():
        return "a point is outside"
    flat: np.ndarray = np.ravel_multi_index(tuple((array % np.array(sizes)).T), sizes)
    return first, flat.tolist(), [0] * first + [math.prod(sizes), *known[count:]]


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph has a Concat and rows of tables, or points."""
    ops = {node.op_type for node in graph}
    return "GatherND" in ops or {"Concat", "Gather"} <= ops


def _run(model: ir.Model, scope: Scope) -> int:
    assert scope.joiner is not None
    return merge(model.graph, scope.inferred, scope.joiner) if scope.gpu else 0


RULES = (Pass(_run), RuleSet(lambda _: [Rooted("GatherND", PointsOfTranspose.rule())]))

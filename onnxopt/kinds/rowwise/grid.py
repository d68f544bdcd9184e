"""Grid: the rows of a rowwise region's domain, and the shapes of values relative to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion import index_ops
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.program.operators import row_operators
from onnxopt.program.operators.row_operators import RowOperator
from onnxopt.program.rowwise import RowProgram

# Operators that change the shape and keep the elements and their order.
RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


class Unfit(ValueError):
    """A node cannot be part of a rowwise region. The message is the reason that users read."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """The domain of a region, see program/rowwise.py.

    dims: the shape of view 0; axes first .. last - 1 are reduced. other: the shape of view 1, None without a view 1.
    value, other_value: values of these shapes, None if there are none. target: the Reshape target that turns the base
    into the other view. base: the view that inputs are broadcast into.
    """

    dims: Dims
    first: int
    last: int
    value: ir.Value | None
    other: Dims | None = None
    other_value: ir.Value | None = None
    target: tuple[int, ...] | None = None
    base: int = 0

    @property
    def rows(self) -> Dims:
        """The shape of a value with one element per row and the reduced axes as 1."""
        return (*self.dims[: self.first], *(1,) * (self.last - self.first), *self.dims[self.last :])

    @property
    def squeezed(self) -> Dims:
        """The shape of a value with one element per row and without the reduced axes."""
        return (*self.dims[: self.first], *self.dims[self.last :])

    @property
    def length(self) -> int | None:
        """Elements of a row, None if unknown."""
        return _product(self.dims[self.first : self.last])

    @property
    def count(self) -> int | None:
        """The number of rows, None if unknown."""
        return _product((*self.dims[: self.first], *self.dims[self.last :]))

    def view(self, value: ir.Value, shapes: Shapes) -> int | None:
        """The view whose shape a value has, None for another shape.

        The base comes first where both views have this shape, because inputs are broadcast into the base.
        """
        views = ((0, self.dims, self.value), (1, self.other, self.other_value))
        for view, dims, like in views[:: -1 if self.base else 1]:
            if like is not None and shapes.same(value, like):
                return view
            if dims is not None and None not in dims and shapes.dims(value) == dims:
                return view
        return None

    def is_row(self, value: ir.Value, shapes: Shapes) -> bool:
        """Whether a value has one element per row, with the reduced axes as 1."""
        dims = shapes.dims(value)
        return dims == self.rows and all(d is not None for d in dims)

    def is_squeezed(self, value: ir.Value, shapes: Shapes) -> bool:
        """Whether a value has one element per row, without the reduced axes."""
        dims = shapes.dims(value)
        return dims == self.squeezed and all(d is not None for d in dims)

    def varies_by_row_at_most(self, dims: Dims | None) -> bool:
        """Whether a value of these dims, broadcast into view 0, is constant along every row."""
        if dims is None or len(dims) > len(self.dims):
            return dims is not None and all(d == 1 for d in dims)
        padded = (1,) * (len(self.dims) - len(dims)) + dims
        return all(d == 1 for d in padded[self.first : self.last])


def operator(node: ir.Node, opsets: Mapping[str, int]) -> RowOperator | None:
    """The row of the table of rowwise operators for a node, None for other operators."""
    return row_operators.find(node.domain, node.op_type, opsets.get(node.domain))


def grid(node: ir.Node, row: RowOperator, shapes: Shapes) -> Grid:
    """The grid of a rowwise node. Unfit, with the reason, where there is none."""
    x = node.inputs[0]
    if x is None:
        raise Unfit(f"{node.op_type} has no data input")
    dims = shapes.dims(x)
    if not dims:
        raise Unfit(f"The rank of `{x.name}` is unknown or 0")
    rank = len(dims)
    if row.axes == "groups":
        return _groups(node, x, dims, shapes)
    reduced = axes(node, row, rank)
    if not reduced or reduced != tuple(range(reduced[0], reduced[-1] + 1)):
        raise Unfit(f"{node.op_type} reduces the axes {reduced}, which are not adjacent")
    rows = Grid(dims, reduced[0], reduced[-1] + 1, x)
    if rows.length is not None and rows.length <= 1:
        raise Unfit(f"{node.op_type} works along rows of length {rows.length}")
    return rows


def axes(node: ir.Node, row: RowOperator, rank: int) -> tuple[int, ...]:
    """The axes of an operand of this rank that a rowwise node reduces. Unfit where the axes are unknown."""
    if row.axes == "spatial":
        if rank < 3:
            x = node.inputs[0]
            raise Unfit(f"{node.op_type} needs an input of rank 3 or more; `{x.name if x else ''}` has rank {rank}")
        return tuple(range(2, rank))
    if row.axes in ("axis", "from axis"):
        axis = _attribute(node, "axis", row.axis)
        axis += rank if axis < 0 else 0
        return tuple(range(axis, rank)) if row.axes == "from axis" else (axis,)
    reduced = _attribute(node, "axes", None)
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    if reduced is None and operand is not None:
        tensor = operand.const_value
        if tensor is None or operand.is_graph_input():
            raise Unfit(
                f"{node.op_type}'s axes `{operand.name}` are computed at run time; only constant axes are fused"
            )
        reduced = tuple(int(a) for a in tensor.numpy().reshape(-1))
    if reduced is None and row.default_axes:
        reduced = row.default_axes
    if not reduced:
        if _attribute(node, "noop_with_empty_axes", 0):
            raise Unfit(f"{node.op_type} has no axes to reduce")
        return tuple(range(rank))
    return tuple(sorted(a + rank if a < 0 else a for a in reduced))


def groups(node: ir.Node) -> int:
    """The number of channel groups of a GroupNormalization."""
    return int(_attribute(node, "num_groups", 0))


def _groups(node: ir.Node, x: ir.Value, dims: Dims, shapes: Shapes) -> Grid:
    count = groups(node)
    if count < 1 or len(dims) < 3:
        raise Unfit(f"GroupNormalization with {count} groups and an input of rank {len(dims)} is not supported")
    elements = _product(dims[1:])
    inner = None if elements is None else elements // count
    return Grid((dims[0], count, inner), 2, 3, None, dims, x, (0, count, -1), base=1)


def with_other_view(grid: Grid, source: ir.Value, result: ir.Value, shapes: Shapes) -> Grid | None:
    """The grid with a second view, the other side of a Reshape from or to view 0; None where the dims are unknown.

    source, result: input and output of the Reshape.
    """
    base = 1 if grid.view(result, shapes) == 0 else 0
    other = source if base == 1 else result
    dims, other_dims = grid.dims, shapes.dims(other)
    if other_dims is None or grid.target is not None:
        return None
    to, of = (dims, other_dims) if base == 1 else (other_dims, dims)
    target = _target(of, to)
    if target is None:
        return None
    return dataclasses.replace(grid, other=other_dims, other_value=other, target=target, base=base)


def _target(of: Dims, to: Dims) -> tuple[int, ...] | None:
    """The shape input of an ONNX Reshape from `of` to `to`; None where two dims are unknown."""
    target = []
    for k, dim in enumerate(to):
        if dim is not None and k < len(of) and dim == of[k]:
            target.append(0)
        elif isinstance(dim, int) and dim > 0:
            target.append(dim)
        else:
            target.append(-1)
    return tuple(target) if target.count(-1) <= 1 else None


def grid_of(nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> Grid:
    """The grid of a region: the grid of its rowwise operators, with the second view that its Reshapes add."""
    rows = [(n, row) for n in nodes if (row := operator(n, opsets)) is not None]
    if not rows:
        raise Unfit("No operator of the region is a reduction")
    grids = [grid(n, row, shapes) for n, row in rows]
    rows_grid = next((g for g in grids if g.target), grids[0])
    # A Reshape to view 0 comes first: the shape of its input is then the shape that inputs are broadcast into.
    reshapes = sorted(
        (n for n in nodes if n.op_type in RESHAPES), key=lambda n: rows_grid.view(n.outputs[0], shapes) != 0
    )
    for node in reshapes:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or rows_grid.target is not None:
            continue
        has_one_side = (rows_grid.view(source, shapes) == 0) != (rows_grid.view(result, shapes) == 0)
        if has_one_side and not rows_grid.is_row(source, shapes) and not rows_grid.is_squeezed(source, shapes):
            rows_grid = with_other_view(rows_grid, source, result, shapes) or rows_grid
    return rows_grid


def values_read(node: ir.Node, opsets: Mapping[str, int]) -> list[ir.Value]:
    """The inputs of a node that hold data, not axes or shapes."""
    row = operator(node, opsets)
    values = node.inputs[: row.operands] if row is not None else index_ops.data_inputs(node)
    return [v for v in values if v is not None]


def spans(grid: Grid, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> bool:
    """Whether all values of a region have the shape of a view of the grid, or one element per row.

    If not, the region has index operations, which kinds/rowwise/index_lowering.py lowers.
    """

    def is_stored(value: ir.Value) -> bool:
        return grid.view(value, shapes) is not None or grid.is_row(value, shapes) or grid.is_squeezed(value, shapes)

    for node in nodes:
        if operator(node, opsets) is not None:
            continue
        if index_ops.is_index(node) and node.op_type not in RESHAPES:
            return False
        read = [v for v in node.inputs[:1] if v is not None and node.op_type in RESHAPES]
        if not all(is_stored(v) for v in (*read, node.outputs[0])):
            return False
    return True


def grids_of(
    program: RowProgram, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
) -> list[Grid]:  # fmt: skip
    """The grids of regions that share a program: its domain if it has index operations, else one per region."""
    if program.index is None:
        return [grid_of(r.nodes, opsets, shapes) for r in regions]
    return [Grid(tuple(e.number if e.number is not None else str(e) for e in program.domain), 1, 2, None)]


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _product(dims: Sequence[int | str | None]) -> int | None:
    if any(not isinstance(d, int) for d in dims):
        return None
    return math.prod(d for d in dims if isinstance(d, int))

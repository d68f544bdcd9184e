"""The grid of rows that a rowwise region runs over, and how its values lie over it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion import index_ops
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.program import row_operators
from onnxopt.program.row_operators import RowOperator
from onnxopt.program.rowwise import RowProgram

# Operators that give the same elements, in the same order, another shape.
RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


class Unfit(ValueError):
    """Why a node cannot be part of a rowwise region, for a user to read."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """The domain of a region, see program/rowwise.py.

    dims: the shape of view 0, of which axes first .. last - 1 are reduced. other: the shape of view 1, if there is one.
    value, other_value: values of these shapes, if there are any. target: how the view that is not the base is reshaped
    from the other. base: the view that inputs are broadcast into.
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
        """The shape of a value with one element a row."""
        return (*self.dims[: self.first], *(1,) * (self.last - self.first), *self.dims[self.last :])

    @property
    def squeezed(self) -> Dims:
        return (*self.dims[: self.first], *self.dims[self.last :])

    @property
    def length(self) -> int | None:
        """Elements of a row, where that is known."""
        return _product(self.dims[self.first : self.last])

    @property
    def count(self) -> int | None:
        """How many rows there are, where that is known."""
        return _product((*self.dims[: self.first], *self.dims[self.last :]))

    def view(self, value: ir.Value, shapes: Shapes) -> int | None:
        """The view that a value of one element for each of the domain has the shape of, None if it has not.

        Where both have one shape it is the base, as inputs are broadcast into that.
        """
        views = ((0, self.dims, self.value), (1, self.other, self.other_value))
        for view, dims, like in views[:: -1 if self.base else 1]:
            if like is not None and shapes.same(value, like):
                return view
            if dims is not None and None not in dims and shapes.dims(value) == dims:
                return view
        return None

    def is_row(self, value: ir.Value, shapes: Shapes) -> bool:
        """Whether a value has exactly one element a row, with the reduced axes as 1."""
        dims = shapes.dims(value)
        return dims == self.rows and all(d is not None for d in dims)

    def is_squeezed(self, value: ir.Value, shapes: Shapes) -> bool:
        dims = shapes.dims(value)
        return dims == self.squeezed and all(d is not None for d in dims)

    def varies_by_row_at_most(self, dims: Dims | None) -> bool:
        """Whether something of these dims, broadcast into view 0, has one element for all of a row."""
        if dims is None or len(dims) > len(self.dims):
            return dims is not None and all(d == 1 for d in dims)
        padded = (1,) * (len(self.dims) - len(dims)) + dims
        return all(d == 1 for d in padded[self.first : self.last])


def operator(node: ir.Node, opsets: Mapping[str, int]) -> RowOperator | None:
    """The table's row for a node, None where it is no rowwise operator."""
    return row_operators.find(node.domain, node.op_type, opsets.get(node.domain))


def grid(node: ir.Node, row: RowOperator, shapes: Shapes) -> Grid:
    """The grid that a rowwise node runs over. Unfit says why there is none."""
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
    found = Grid(dims, reduced[0], reduced[-1] + 1, x)
    if found.length is not None and found.length <= 1:
        raise Unfit(f"{node.op_type} works along rows of length {found.length}")
    return found


def axes(node: ir.Node, row: RowOperator, rank: int) -> tuple[int, ...]:
    """The axes that a rowwise node reduces, of an operand of this rank. Unfit where they are not known."""
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
    """How many groups of channels a GroupNormalization has."""
    return int(_attribute(node, "num_groups", 0))


def _groups(node: ir.Node, x: ir.Value, dims: Dims, shapes: Shapes) -> Grid:
    count = groups(node)
    if count < 1 or len(dims) < 3:
        raise Unfit(f"GroupNormalization with {count} groups and an input of rank {len(dims)} is not supported")
    elements = _product(dims[1:])
    inner = None if elements is None else elements // count
    return Grid((dims[0], count, inner), 2, 3, None, dims, x, (0, count, -1), base=1)


def with_other_view(found: Grid, source: ir.Value, result: ir.Value, shapes: Shapes) -> Grid | None:
    """The grid with the view that a reshape of one element each leads from or to; None where it cannot be told."""
    base = 1 if found.view(result, shapes) == 0 else 0
    other = source if base == 1 else result
    dims, other_dims = found.dims, shapes.dims(other)
    if other_dims is None or found.target is not None:
        return None
    to, of = (dims, other_dims) if base == 1 else (other_dims, dims)
    target = _target(of, to)
    if target is None:
        return None
    return dataclasses.replace(found, other=other_dims, other_value=other, target=target, base=base)


def _target(of: Dims, to: Dims) -> tuple[int, ...] | None:
    """How ONNX's Reshape would be told to go from the one shape to the other; None where two dims are unknown."""
    target = []
    for k, dim in enumerate(to):
        if dim is not None and k < len(of) and dim == of[k]:
            target.append(0)
        elif isinstance(dim, int) and dim > 0:
            target.append(dim)
        else:
            target.append(-1)
    return tuple(target) if target.count(-1) <= 1 else None


def of_region(nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> Grid:
    """The grid of a region's nodes: that of its rowwise operators, with the view that its reshapes tell."""
    rows = [(n, row) for n in nodes if (row := operator(n, opsets)) is not None]
    if not rows:
        raise Unfit("No operator of the region is a reduction")
    grids = [grid(n, row, shapes) for n, row in rows]
    found = next((g for g in grids if g.target), grids[0])
    # A reshape that leads to the rows' shape comes first: its source is then the shape that inputs are broadcast into.
    reshapes = sorted((n for n in nodes if n.op_type in RESHAPES), key=lambda n: found.view(n.outputs[0], shapes) != 0)
    for node in reshapes:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or found.target is not None:
            continue
        leads = (found.view(source, shapes) == 0) != (found.view(result, shapes) == 0)
        if leads and not found.is_row(source, shapes) and not found.is_squeezed(source, shapes):
            found = with_other_view(found, source, result, shapes) or found
    return found


def values_read(node: ir.Node, opsets: Mapping[str, int]) -> list[ir.Value]:
    """The inputs of a node that are values of the computation, not axes or shapes."""
    row = operator(node, opsets)
    values = node.inputs[: row.operands] if row is not None else index_ops.data_inputs(node)
    return [v for v in values if v is not None]


def lies_over(found: Grid, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> bool:
    """Whether all that a region's nodes compute has the shape of one of the grid's views, or one value a row; else
    index operations are among them, and the elements have to be followed one by one (kinds/rowwise/index_lowering.py)."""

    def lies(value: ir.Value) -> bool:
        return found.view(value, shapes) is not None or found.is_row(value, shapes) or found.is_squeezed(value, shapes)

    for node in nodes:
        if operator(node, opsets) is not None:
            continue
        if index_ops.is_index(node) and node.op_type not in RESHAPES:
            return False
        read = [v for v in node.inputs[:1] if v is not None and node.op_type in RESHAPES]
        if not all(lies(v) for v in (*read, node.outputs[0])):
            return False
    return True


def of_regions(
    program: RowProgram, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
) -> list[Grid]:  # fmt: skip
    """The grids of regions that share a program: its own where it has index operations, each its own elsewhere."""
    if program.index is None:
        return [of_region(r.nodes, opsets, shapes) for r in regions]
    return [Grid(tuple(e.number if e.number is not None else str(e) for e in program.domain), 1, 2, None)]


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _product(dims: Sequence[int | str | None]) -> int | None:
    if any(not isinstance(d, int) for d in dims):
        return None
    return math.prod(d for d in dims if isinstance(d, int))

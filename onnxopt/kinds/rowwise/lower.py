"""Lowering of rowwise regions: their nodes become one list of instructions, split where rows are reduced."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion.operands import apply_operator, storage
from onnxopt.fusion.programs import immediate
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.rowwise import grid as row_domain
from onnxopt.kinds.rowwise.grid import RESHAPES, Grid
from onnxopt.kinds.rowwise.index_lowering import lower_indexed_rows
from onnxopt.kinds.rowwise.stages import split
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.operators.row_operators import RowCall, RowOperator
from onnxopt.program.rowwise import Operand, Result, RowProgram, View

_MAX_PROGRAMS = 512  # that are kept for regions of equal parts


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> RowProgram:
    """The program of nodes in topological order that read `inputs` (and constants) and define `outputs`.

    Raises ValueError, with the reason, where the nodes cannot be one kernel.
    """
    grid = row_domain.grid_of(nodes, opsets, shapes)
    if not row_domain.spans(grid, nodes, opsets, shapes):
        return lower_indexed_rows(nodes, inputs, outputs, opsets, shapes)
    operands = _operands(nodes, inputs, opsets, grid, shapes)
    if not _span(operands, inputs, grid, shapes):
        raise ValueError("No input has the full shape of the rows")
    builder = Builder(tuple(storage(v, shapes).name for v in inputs))
    expressions: dict[ir.Value, Expr] = dict(zip(inputs, builder.inputs, strict=True))
    for node in nodes:
        for value in row_domain.values_read(node, opsets):
            if value not in expressions:
                expressions[value] = immediate(builder, value, shapes)[0]
        row = row_domain.operator(node, opsets)
        if row is not None:
            expressions.update(zip(node.outputs, _meaning(node, row, expressions, shapes), strict=False))
        elif node.op_type in RESHAPES:
            expressions[node.outputs[0]] = expressions[node.inputs[0]]  # type: ignore[index]
        else:
            expressions[node.outputs[0]] = apply_operator(node, expressions, opsets, shapes)
    return _program(
        _Parts(
            builder.key,
            inputs=tuple(storage(v, shapes).name for v in inputs),
            outputs=tuple(storage(v, shapes).name for v in outputs),
            first=grid.first,
            last=grid.last,
            views=_views(grid),
            operands=operands,
            results=tuple(_result(v, grid, shapes) for v in outputs),
            stored=tuple(expressions[v].id for v in outputs),
            builder=builder,
        )
    )


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What a program is made from: its fields, the ids of the values it stores, and a builder with its code.

    key: of the builder, which itself does not count where parts are compared.
    """

    key: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    first: int
    last: int
    views: tuple[View, ...]
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    stored: tuple[int, ...]
    builder: Builder = dataclasses.field(compare=False, repr=False)


@functools.lru_cache(maxsize=_MAX_PROGRAMS)
def _program(parts: _Parts) -> RowProgram:
    """The program of these parts, one object for equal parts: the layers of a model differ in their weights alone."""
    stages, output, row_output = split(parts.builder, parts.operands, parts.stored, parts.results, parts.outputs)
    program = RowProgram(
        inputs=parts.inputs,
        outputs=parts.outputs,
        first=parts.first,
        last=parts.last,
        views=parts.views,
        operands=parts.operands,
        results=parts.results,
        stages=stages,
        output=output,
        row_output=row_output,
    )
    program.verify()
    return program


def _meaning(node: ir.Node, row: RowOperator, expressions: Mapping[ir.Value, Expr], shapes: Shapes) -> tuple[Expr, ...]:
    args = tuple(None if v is None else expressions[v] for v in node.inputs[: row.operands])
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    first = node.inputs[0]
    if first is None:
        raise ValueError(f"{node.op_type} has no data input")
    return row.meaning(RowCall(args, attributes, storage(first, shapes).name))


def _views(grid: Grid) -> tuple[View, ...]:
    rows = View(len(grid.dims), grid.target if grid.base == 1 else None)
    if grid.other is None:
        return (rows,)
    return (rows, View(len(grid.other), grid.target if grid.base == 0 else None))


def _result(value: ir.Value, grid: Grid, shapes: Shapes) -> Result:
    view = grid.view(value, shapes)
    if view is not None:
        return Result("element", view)
    if grid.is_row(value, shapes):
        return Result("row")
    if grid.is_squeezed(value, shapes):
        return Result("squeezed")
    raise ValueError(f"`{value.name}` has neither the shape of the rows nor one value per row")


def _operands(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], opsets: Mapping[str, int], grid: Grid, shapes: Shapes
) -> tuple[Operand, ...]:
    """The broadcast of every input. ValueError where two nodes broadcast one input differently."""
    operands: dict[ir.Value, Operand] = {}
    for node in nodes:
        row = row_domain.operator(node, opsets)
        for k, value in enumerate(node.inputs):
            if value is None or value not in inputs:
                continue
            operand = _operand(node, row, k, value, grid, shapes)
            if operands.setdefault(value, operand) != operand and shapes.elements(value) != 1:
                raise ValueError(f"`{value.name}` would be broadcast in two different ways")
    return tuple(operands[v] for v in inputs)


def _span(operands: Sequence[Operand], inputs: Sequence[ir.Value], grid: Grid, shapes: Shapes) -> bool:
    """Whether the inputs that are broadcast into the base view can give it its shape.

    They cannot where all of them have 1 along an axis, and the view has not: another view's inputs give it the rest.
    """
    base = grid.dims if grid.base == 0 else grid.other
    read = [(o, shapes.dims(v)) for o, v in zip(operands, inputs, strict=True) if o.view == grid.base]
    if not read or base is None or any(dims is None for _, dims in read):
        return bool(read)
    shapes_read = [(*(dims or ()), *(1,) * operand.trailing) for operand, dims in read]
    return all(
        dim == 1 or any(len(dims) >= k and dims[-k] != 1 for dims in shapes_read)
        for k, dim in enumerate(reversed(base), 1)
    )


def _operand(node: ir.Node, row: RowOperator | None, k: int, value: ir.Value, grid: Grid, shapes: Shapes) -> Operand:
    dims = shapes.dims(value)
    first = node.inputs[0]
    if row is not None and k >= row.operands:
        raise ValueError(f"`{value.name}` holds axes, not data")
    if row is not None and k in row.channels and first is not None:
        view = 1 if grid.base == 1 and row.axes == "groups" else grid.view(first, shapes) or 0
        trailing = len((grid.dims, grid.other or ())[view]) - 2
    else:
        like = first if row is not None or node.op_type in RESHAPES else node.outputs[0]
        view = (grid.view(like, shapes) if like is not None else None) or 0
        trailing = 0
    if shapes.elements(value) == 1 and dims is not None and len(dims) <= 1:
        view = grid.base
    padded = None if dims is None else (*dims, *(1,) * trailing)
    return Operand(view, trailing, (view == 0 and grid.varies_by_row_at_most(padded)) or shapes.elements(value) == 1)

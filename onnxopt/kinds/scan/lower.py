"""Lowering of scan regions: a program for the summed values, the CumSum, and a program for the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.operands import apply_operator, constant, storage
from onnxopt.fusion.programs import immediate
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.rowwise.grid import Grid
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import Program, without_dead_code
from onnxopt.program.scan import ScanProgram

OPERATOR = ("", "CumSum")


def is_scan(node: ir.Node) -> bool:
    """Whether a node is a CumSum."""
    return (node.domain, node.op_type) == OPERATOR


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> ScanProgram:
    """The program of nodes in topological order that read `inputs` (and constants) and define `outputs`.

    One of the nodes is a CumSum. Raises ValueError, with the reason, where the nodes cannot be one kernel.
    """
    (scan,) = (n for n in nodes if is_scan(n))
    summed, total = scan.inputs[0], scan.outputs[0]
    dims = None if summed is None else shapes.dims(summed)
    if summed is None or not dims:
        raise ValueError(f"The rank of the input of `{scan.name}` is unknown or 0")
    elementwise = [n for n in nodes if n is not scan]
    dtype = storage(summed, shapes).compute
    prologue = _program(elementwise, inputs, [(summed, dtype)], None, opsets, shapes)
    stored = [(v, storage(v, shapes).name) for v in outputs]
    epilogue = _program(elementwise, inputs, stored, total, opsets, shapes)
    grid = grid_of(scan, shapes)
    program = ScanProgram(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=tuple(name for _, name in stored),
        rank=len(dims),
        axis=grid.first,
        exclusive=bool(scan.attributes.get_int("exclusive", 0)),
        reverse=bool(scan.attributes.get_int("reverse", 0)),
        element=prologue,
        output=epilogue,
        rows=tuple(grid.varies_by_row_at_most(shapes.dims(v)) for v in inputs),
    )
    program.verify()
    return program


def grid_of(scan: ir.Node, shapes: Shapes) -> Grid:
    """The rows along which a CumSum sums."""
    x = scan.inputs[0]
    dims = None if x is None else shapes.dims(x)
    if x is None or dims is None:
        raise ValueError(f"The rank of the input of `{scan.name}` is unknown")
    axis = axis_of(scan, len(dims))
    return Grid(dims, axis, axis + 1, x)


def axis_of(scan: ir.Node, rank: int) -> int:
    """The axis of a CumSum, counted from the first. ValueError where the axis is not constant."""
    tensor = constant(scan.inputs[1])
    if tensor is None:
        raise ValueError(f"The axis of `{scan.name}` is not constant")
    return int(tensor.numpy().item()) % rank


def _program(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    results: Sequence[tuple[ir.Value, str]],
    total: ir.Value | None,
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Program:
    """The program that computes `results`, each a value with its dtype, from the inputs and the running total.

    total: None for the program of the summed values, which cannot read it.
    """
    dtypes = [storage(v, shapes).name for v in inputs]
    if total is not None:
        dtypes.append(storage(total, shapes).compute)
    builder = Builder(tuple(dtypes))
    read = [*inputs, *([total] if total is not None else ())]
    expressions: dict[ir.Value, Expr] = dict(zip(read, builder.inputs, strict=True))
    depends: dict[ir.Value, frozenset[int]] = {v: frozenset([k]) for k, v in enumerate(read)}
    for node in nodes:
        operands = [v for v in node.inputs if v is not None]
        for value in operands:
            if value not in expressions and constant(value) is not None:
                expressions[value], depends[value] = immediate(builder, value, shapes)[0], frozenset()
        if all(v in expressions for v in operands):  # else the node depends on the total
            expressions[node.outputs[0]] = apply_operator(node, expressions, opsets, shapes)
            depends[node.outputs[0]] = frozenset().union(*(depends[v] for v in operands))
    if any(v not in expressions for v, _ in results):
        raise ValueError("The summed value depends on the running total")
    program = Program(
        inputs=tuple(dtypes),
        outputs=tuple(dtype for _, dtype in results),
        code=tuple(builder.code),
        results=tuple(expressions[v].id for v, _ in results),
        depends=tuple(tuple(sorted(depends[v])) for v, _ in results),
        ranks=(0,) * len(results),
    )
    return without_dead_code(program)

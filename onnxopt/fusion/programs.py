"""Programs of elementwise nodes without broadcasting: what runs inside a core's kernel, or between its products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.operands import apply_operator, constant, storage
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import Program, without_dead_code


def immediate(builder: Builder, value: ir.Value, shapes: Shapes) -> tuple[Expr, int]:
    """A scalar constant as an expression, and its rank. ValueError for other values."""
    tensor = constant(value)
    if tensor is None:
        raise ValueError(f"`{value.name}` is neither an input of the region nor a scalar constant")
    return builder.const(tensor.numpy().reshape(()).item(), storage(value, shapes).compute), len(tensor.shape)


def program_of(
    nodes: Sequence[ir.Node],
    operands: Sequence[tuple[ir.Value, str]],
    result: tuple[ir.Value, str],
    opsets: Mapping[str, int],
    shapes: Shapes,
    begin: Callable[[Sequence[Expr]], Expr] | None = None,
) -> Program:
    """The program of nodes in topological order that read the operands and scalar constants.

    operands, result: values and the dtypes that the program reads and stores. begin: computes from all operands what
    the nodes see of the first one.
    """
    builder = Builder(tuple(dtype for _, dtype in operands))
    expressions: dict[ir.Value, Expr] = dict(zip((v for v, _ in operands), builder.inputs, strict=True))
    if begin is not None:
        expressions[operands[0][0]] = begin(builder.inputs)
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in expressions:
                expressions[value] = immediate(builder, value, shapes)[0]
        expressions[node.outputs[0]] = apply_operator(node, expressions, opsets, shapes)
    program = Program(
        inputs=tuple(dtype for _, dtype in operands),
        outputs=(result[1],),
        code=tuple(builder.code),
        results=(expressions[result[0]].id,),
        depends=(tuple(range(len(operands))),),
        ranks=(0,),
    )
    program = without_dead_code(program)
    program.verify()
    return program

"""Lowering: the nodes of a region become a Program, through the operator table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt import ops
from onnxopt.dtypes import Dtype
from onnxopt.expr import Builder, Expr
from onnxopt.program import Instruction, Program
from onnxopt.shapes import Shapes


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The one element of a value that is a constant of one element and that nobody can feed, else None."""
    if value is None or value.const_value is None or value.is_graph_input() or value.const_value.size != 1:
        return None
    return value.const_value


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Program:
    """The program of nodes in topological order that read `inputs` (and constants) and define `outputs`.

    Every node must have a row in the table and every value a storable dtype: fuse.py sees to both.
    """
    builder = Builder(tuple(storage(v, shapes).name for v in inputs))
    known: dict[ir.Value, Expr] = dict(zip(inputs, builder.inputs, strict=True))
    depends: dict[ir.Value, frozenset[int]] = {v: frozenset([k]) for k, v in enumerate(inputs)}
    ranks: dict[ir.Value, int] = dict.fromkeys(inputs, 0)
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in known:
                known[value], ranks[value] = immediate(builder, value, shapes)
                depends[value] = frozenset()
        result = node.outputs[0]
        known[result] = apply_operator(node, known, opsets, shapes)
        operands = [v for v in node.inputs if v is not None]
        depends[result] = frozenset().union(*(depends[v] for v in operands))
        ranks[result] = max(ranks[v] for v in operands)
    program = Program(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=tuple(storage(v, shapes).name for v in outputs),
        code=tuple(builder.code),
        results=tuple(known[v].id for v in outputs),
        depends=tuple(tuple(sorted(depends[v])) for v in outputs),
        ranks=tuple(ranks[v] for v in outputs),
    )
    program = _without_dead_code(program)
    program.verify()
    return program


def apply_operator(node: ir.Node, known: Mapping[ir.Value, Expr], opsets: Mapping[str, int], shapes: Shapes) -> Expr:
    row = ops.find(node.domain, node.op_type, opsets.get(node.domain))
    if row is None:
        raise ValueError(f"{node.op_type} is not in the operator table")
    first = next(v for v in node.inputs if v is not None)
    args = []
    for value in node.inputs:
        arg = None if value is None else known[value]
        if value is not None and arg is not None and row.exact and arg.is_float:
            arg = arg.narrow(storage(value, shapes).name)
        args.append(arg)
    call = ops.Call(
        args=tuple(args),  # type: ignore[arg-type]  # only Clip has operands that may be left out, and it looks
        attributes={name: attribute.value for name, attribute in node.attributes.items()},
        operand=storage(first, shapes).name,
        result=storage(node.outputs[0], shapes).name,
    )
    return row.meaning(call)


def immediate(builder: Builder, value: ir.Value, shapes: Shapes) -> tuple[Expr, int]:
    tensor = constant(value)
    if tensor is None:
        raise ValueError(f"{value.name} is neither an input of the region nor a constant of one element")
    return builder.const(tensor.numpy().reshape(()).item(), storage(value, shapes).compute), len(tensor.shape)


def storage(value: ir.Value, shapes: Shapes) -> Dtype:
    dtype = shapes.dtype(value)
    if dtype is None:
        raise ValueError(f"{value.name} has no dtype that a kernel can store")
    return dtype


def _without_dead_code(program: Program) -> Program:
    """Drop instructions no output needs (a special case such as x ** 2 leaves its exponent behind)."""
    first = len(program.inputs)
    live = set(program.results)
    for k in range(len(program.code) - 1, -1, -1):
        if first + k in live:
            live.update(program.code[k].args)
    ids = {k: k for k in range(first)}
    code: list[Instruction] = []
    for k, instruction in enumerate(program.code):
        if first + k in live:
            ids[first + k] = first + len(code)
            code.append(dataclasses.replace(instruction, args=tuple(ids[a] for a in instruction.args)))
    return dataclasses.replace(program, code=tuple(code), results=tuple(ids[r] for r in program.results))

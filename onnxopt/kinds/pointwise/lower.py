"""Lowering: the nodes of a region become a Program, through the operator table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.index_ops import is_index
from onnxopt.fusion.operands import apply_operator, storage
from onnxopt.fusion.programs import immediate
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.index_lowering import lower_indexed
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import Program, without_dead_code


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Program:
    """The program of nodes in topological order that read `inputs` (and constants) and define `outputs`.

    Every node must have a row in the operator table or be an index operation, and every value must have a storable
    dtype; the search for regions checks both. Raises index_maps.NotAffine where index operations cannot be part of a
    kernel.
    """
    if any(is_index(node) for node in nodes):
        return lower_indexed(nodes, inputs, outputs, opsets, shapes)
    builder = Builder(tuple(storage(v, shapes).name for v in inputs))
    expressions: dict[ir.Value, Expr] = dict(zip(inputs, builder.inputs, strict=True))
    depends: dict[ir.Value, frozenset[int]] = {v: frozenset([k]) for k, v in enumerate(inputs)}
    ranks: dict[ir.Value, int] = dict.fromkeys(inputs, 0)
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in expressions:
                expressions[value], ranks[value] = immediate(builder, value, shapes)
                depends[value] = frozenset()
        result = node.outputs[0]
        expressions[result] = apply_operator(node, expressions, opsets, shapes)
        operands = [v for v in node.inputs if v is not None]
        depends[result] = frozenset().union(*(depends[v] for v in operands))
        ranks[result] = max(ranks[v] for v in operands)
    program = Program(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=tuple(storage(v, shapes).name for v in outputs),
        code=tuple(builder.code),
        results=tuple(expressions[v].id for v in outputs),
        depends=tuple(tuple(sorted(depends[v])) for v in outputs),
        ranks=tuple(ranks[v] for v in outputs),
    )
    program = without_dead_code(program)
    program.verify()
    return program

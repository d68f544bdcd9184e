"""Which values change where a tensor loses what repeats in it, and readers broadcast the rest themselves."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.shapes.dims import Dims, broadcast
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.program.operators import table as operators

_FOLLOWED = 64  # values whose dims may change


def narrowed(start: ir.Value, dims: Dims, inferred: Knowledge) -> dict[ir.Value, Dims] | None:
    """The values whose shape changes where `start` gets these dims, with their new dims.

    None where an operator that does not broadcast, or an output of the model, would change.
    """
    changed, pending = {start: dims}, [start]
    while pending:
        value = pending.pop()
        if value.is_graph_output() or len(changed) > _FOLLOWED:
            return None
        for node in value.consumers():
            shapes = [changed.get(v, inferred.dims(v)) for v in node.inputs if v is not None]
            known = [s for s in shapes if s is not None]
            result = _result(node, known) if len(known) == len(shapes) else None
            if result is None:
                return None
            earlier = inferred.dims(node.outputs[0])
            if result != changed.get(node.outputs[0], earlier):
                changed[node.outputs[0]] = result
                pending.append(node.outputs[0])
    return changed


def _result(node: ir.Node, shapes: Sequence[Dims]) -> Dims | None:
    """The dims of the result of a node that broadcasts operands of these dims; None for other operators.

    A product over one element broadcasts its batches, and rounds alike however many these are.
    """
    if (node.domain, node.op_type) in operators.OPERATORS:
        return broadcast(shapes)
    if (node.domain, node.op_type) != ("", "MatMul") or any(len(dims) < 2 for dims in shapes):
        return None
    (*batches, rows, over), (*others, again, columns) = shapes
    return (*broadcast([tuple(batches), tuple(others)]), rows, columns) if (over, again) == (1, 1) else None

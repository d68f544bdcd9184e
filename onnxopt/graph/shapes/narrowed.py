"""Which values change where a tensor loses what repeats in it, and readers broadcast the rest themselves."""

from __future__ import annotations

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
            if (node.domain, node.op_type) not in operators.OPERATORS or any(s is None for s in shapes):
                return None
            result, earlier = broadcast([s for s in shapes if s is not None]), inferred.dims(node.outputs[0])
            if result != changed.get(node.outputs[0], earlier):
                changed[node.outputs[0]] = result
                pending.append(node.outputs[0])
    return changed

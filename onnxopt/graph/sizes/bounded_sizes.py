"""Minima of sizes that are one of the two wherever the graph runs, because a node fails at all other sizes.

Exporters write Min(sequence, 64) where a table has 64 rows, and

    Reshape(x [batch * sequence, 768], [batch, Min(sequence, 64), 768])

runs only where that is `sequence`. The pass lets readers of the minimum read `sequence`, which later steps compare with
other dims. Where the sequence is longer, reading the table fails on the CPU; CUDA's Gather gives zeros there.
"""

from __future__ import annotations

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.dims import Dim, sign
from onnxopt.graph.shapes.infer import Knowledge, infer
from onnxopt.graph.sizes.single_sizes import zeros

_LARGEST = 64  # terms of an expression that is solved


class BoundedSizesPass(ir.passes.InPlacePass):
    """The pass. Nodes are in topological order, and the model has opset 13 or later."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [node for node in model.graph if node.op_type == "Min" and node.domain == "" and len(node.inputs) == 2]
        if not nodes:
            return ir.passes.PassResult(model, False)
        inferred, count = infer(model), 0
        minima = {node: minimum for node in nodes if (minimum := _minimum(node, inferred)) is not None}
        certain = _certain(model.graph, inferred, {minimum for minimum, _ in minima.values()})
        for node, (minimum, operand) in minima.items():
            if certain.get(minimum) == _content(operand, inferred):
                node.outputs[0].replace_all_uses_with(operand, replace_graph_outputs=True)
                model.graph.remove(node, safe=True)
                count += 1
        return ir.passes.PassResult(model, bool(count))


def _minimum(node: ir.Node, inferred: Knowledge) -> tuple[sympy.Min, ir.Value] | None:
    """The minimum that a node computes of a number and an expression of sizes, and the operand that is the latter."""
    content = _content(node.outputs[0], inferred)
    symbolic = [value for value in node.inputs if value is not None and _is_symbolic(_content(value, inferred))]
    if not isinstance(content, sympy.Min) or len(symbolic) != 1 or node.outputs[0].is_graph_output():
        return None
    if inferred.dims(symbolic[0]) != inferred.dims(node.outputs[0]):
        return None
    return content, symbolic[0]


def _is_symbolic(content: Dim | None) -> bool:
    return content is not None and not isinstance(content, int)


def _content(value: ir.Value | None, inferred: Knowledge) -> Dim | None:
    """The one size that a tensor holds; None for others."""
    held = inferred.contents(value)
    return held.flat[0] if held is not None and held.size == 1 else None


def _certain(graph: ir.Graph, inferred: Knowledge, minima: set[sympy.Min]) -> dict[sympy.Min, Dim]:
    """The operand that each minimum is, where a node fails if it is another one."""
    certain: dict[sympy.Min, Dim] = {}
    for _, zero in zeros(graph, inferred) if minima else ():
        for minimum in zero.atoms(sympy.Min) & minima:
            for operand in minimum.args:
                if operand.is_number or len(sympy.Add.make_args(zero)) > _LARGEST:
                    continue
                factor = sympy.cancel(sympy.expand(zero) / (operand - minimum))
                if factor.is_polynomial() and sign(factor) in (1, -1):
                    certain[minimum] = operand
    return certain

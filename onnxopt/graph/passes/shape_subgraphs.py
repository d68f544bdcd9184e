"""Infers shapes, and removes nodes whose result inference knows.

a small integer tensor  -> a constant        where every element is known to be a number
                        -> an earlier value  where that one holds the same expressions
                        -> Concat(earlier)   in place of a Reshape of a matrix, where earlier ones hold each element
Expand(x, shape)        -> x                 where every reader broadcasts x to the same result
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes.contents import Contents
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.graph.shapes.narrowed import narrowed


class SimplifyShapesPass(ir.passes.InPlacePass):
    """Infers the shapes of all values, then replaces values that hold known shapes.

    No output changes, and no tensor becomes larger. Nodes without readers are left for other passes to remove.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        inferred = infer.infer(model)
        modified = inferred.write()
        for graph in model.graphs():
            first: dict[Hashable, ir.Value] = {}
            for node in graph:
                for value in () if node.op_type == "Constant" else node.outputs:
                    modified |= _replace_contents(value, graph, inferred, first)
                modified |= _drop_expand(node, inferred)
        return ir.passes.PassResult(model, modified)


def _replace_contents(value: ir.Value, graph: ir.Graph, inferred: Knowledge, first: dict[Hashable, ir.Value]) -> bool:
    """Replace a small integer tensor by a constant, or by an earlier value with the same contents."""
    held, dtype = inferred.contents(value), value.dtype
    if held is None or dtype is None or value.is_graph_output() or not value.uses():
        return False
    if all(isinstance(element, int) for element in held.flat):
        array = np.asarray(held.astype(np.int64), dtype.numpy())
        constant = ir.Value(name=f"{value.name}_known", const_value=ir.tensor(array, name=f"{value.name}_known"))
        constant.shape, constant.dtype = ir.Shape(array.shape), dtype
        graph.register_initializer(constant)
        value.replace_all_uses_with(constant)
        return True
    earlier = first.setdefault((dtype, held.shape, tuple(held.flat)), value)
    if earlier is value:
        joined = _joined(value, held, graph, inferred, first)
        if joined is None:
            return False
        first[dtype, held.shape, tuple(held.flat)] = earlier = joined
    value.replace_all_uses_with(earlier)
    return True


def _joined(
    value: ir.Value, held: Contents, graph: ir.Graph, inferred: Knowledge, first: dict[Hashable, ir.Value]
) -> ir.Value | None:
    """A vector of the elements of a matrix, joined of earlier vectors of one element; None for others.

    Exporters order pads so, by Reshape, Slice and Transpose, and kernels would take the matrix for data.
    """
    node, dtype = value.producer(), value.dtype
    if node is None or (node.domain, node.op_type) != ("", "Reshape") or held.ndim != 1 or dtype is None:
        return None
    if len(inferred.dims(node.inputs[0]) or ()) < 2:
        return None
    parts = [e if isinstance(e, int) else first.get((dtype, (1,), (e,))) for e in held.flat]
    if any(part is None for part in parts):
        return None
    nodes = NewNodes(graph, node)
    operands = [nodes.constant(np.array([p], dtype.numpy())) if isinstance(p, int) else p for p in parts]
    return nodes.add("Concat", operands, dtype, [ir.AttrInt64("axis", 0)])


def _drop_expand(node: ir.Node, inferred: Knowledge) -> bool:
    """Let the readers of an Expand broadcast its operand themselves, where their results stay the same."""
    if node.op_type != "Expand" or node.domain != "" or node.inputs[0] is None:
        return False
    source, expanded = node.inputs[0], node.outputs[0]
    dims = inferred.dims(source)
    changed = None if dims is None or not expanded.uses() else narrowed(expanded, dims, inferred)
    if changed is None:
        return False
    expanded.replace_all_uses_with(source)
    for value, smaller in changed.items():
        if value is not expanded:
            inferred.correct(value, smaller)
    return True

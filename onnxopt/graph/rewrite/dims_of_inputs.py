"""Shapes of intermediate values, read off the graph's inputs instead.

    Shape(x)            -> Concat(Shape(input, start=0, end=1), [4], Shape(input, start=1, end=2))
    Gather(Shape(x), 2) -> Squeeze(Shape(input, start=1, end=2))

A Gather of one dim does so where no input tells the other dims of x. Then no Shape reads the intermediate value,
and rules and kernels may take in the nodes that compute it.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.rewrite.rule_sets import Pass, Scope
from onnxopt.graph.shapes.dims import Dim
from onnxopt.graph.shapes.infer import Knowledge


def read_from_inputs(model: ir.Model, inferred: Knowledge) -> int:
    """Replace Shapes, and Gathers of them, of intermediate values whose dims are numbers or dims of inputs.

    inferred: what is inferred of the model's values, which is changed in place. Returns how many Shapes were replaced.
    """
    graph, count = model.graph, 0
    sources = sources_of(graph, inferred)
    for node in list(graph):
        if node.op_type != "Shape" or node.domain != "" or node.inputs[0] in graph.inputs or not node.outputs[0].uses():
            continue
        contents = inferred.contents(node.outputs[0])
        parts = [] if contents is None else [_part(dim, sources) for dim in contents.flat]
        nodes = [part for part in parts if part is not None]
        read = _read_parts(graph, node, parts)
        if not parts or len(nodes) < len(parts):
            graph.insert_before(node, [part for part in nodes if part.outputs[0].uses()])
            count += bool(read)
            continue
        concat = [ir.node("Concat", [n.outputs[0] for n in nodes], {"axis": 0})] if len(nodes) > 1 else []
        added = [*nodes, *concat]
        ir.convenience.replace_nodes_and_values(graph, node, [node], added, node.outputs, added[-1].outputs)
        count += 1
    return count


def _read_parts(graph: ir.Graph, shape: ir.Node, parts: list[ir.Node | None]) -> int:
    """Let each Gather of one dim read the part with this dim. Returns how many.

    parts: nodes that give the Shape's elements and join the graph, None for elements that no input tells.
    """
    count = 0
    for gather in list(shape.outputs[0].consumers()):
        position = gather.inputs[1] if gather.op_type == "Gather" and gather.domain == "" else None
        index = position.const_value if is_constant(position) and position is not None else None
        is_output = gather.outputs[0].is_graph_output()
        if index is None or index.size != 1 or len(index.shape) > 1 or gather.graph is not graph or is_output:
            continue
        k = int(index.numpy().reshape(()))
        part = parts[k] if -len(parts) <= k < len(parts) else None
        if part is None:
            continue
        if not len(index.shape):
            part = ir.node("Squeeze", [part.outputs[0]])
            graph.insert_before(gather, [part])
        ir.convenience.replace_all_uses_with(gather.outputs[0], part.outputs[0], replace_graph_outputs=False)
        count += 1
    return count


def sources_of(graph: ir.Graph, inferred: Knowledge) -> dict[Dim, tuple[ir.Value, int]]:
    """The first input with each named dim, and the axis that the dim is of."""
    sources: dict[Dim, tuple[ir.Value, int]] = {}
    for value in graph.inputs:
        names = value.shape.dims if value.shape is not None else ()
        for axis, (name, dim) in enumerate(zip(names, inferred.dims(value) or (), strict=True)):
            if isinstance(name, ir.SymbolicDim) and name.value is not None:
                sources.setdefault(dim, (value, axis))
    return sources


def _part(dim: Dim, sources: dict[Dim, tuple[ir.Value, int]]) -> ir.Node | None:
    """A node that gives this dim as a tensor of one element, None where no input has the dim."""
    if isinstance(dim, int):
        return ir.node("Constant", [], {"value": ir.tensor([dim], dtype=ir.DataType.INT64)})
    if dim not in sources:
        return None
    value, axis = sources[dim]
    return ir.node("Shape", [value], {"start": axis, "end": axis + 1})


def _pass(model: ir.Model, scope: Scope) -> int:
    return read_from_inputs(model, scope.inferred)


RULES = (Pass(_pass),)

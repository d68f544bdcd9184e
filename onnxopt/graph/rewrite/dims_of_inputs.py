"""Dims that a graph reads off its intermediate values, read off its inputs, or as constants, instead.

    Shape(x) -> Concat(Shape(input, start=0, end=1), [4], Shape(input, start=1, end=2))

Then nothing holds on to the intermediate value, and rules may replace what makes it.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.passes.fold import Fold
from onnxopt.graph.rewrite.symbolic import Dim, Symbols, same


def read_from_inputs(model: ir.Model, symbols: Symbols) -> bool:
    """Replace what is computed from dims by constants, and shapes of intermediate values by inputs' dims, in place."""
    graph = model.graph
    changed = _fold_known(model, symbols)
    sources = _sources(graph)
    for node in list(graph):
        if node.op_type != "Shape" or node.domain != "" or node.inputs[0] in graph.inputs or not node.outputs[0].uses():
            continue
        dims = symbols.contents(node.outputs[0])
        parts = [_part(dim, sources) for dim in dims] if dims else []
        if not parts or any(part is None for part in parts):
            continue
        nodes = [part for part in parts if part is not None]
        joined = ir.node("Concat", [n.outputs[0] for n in nodes], {"axis": 0}) if len(nodes) > 1 else None
        added = [*nodes, *([joined] if joined is not None else [])]
        ir.convenience.replace_nodes_and_values(graph, node, [node], added, node.outputs, added[-1].outputs)
        changed = True
    return changed


def _sources(graph: ir.Graph) -> list[tuple[ir.SymbolicDim, ir.Value, int]]:
    """Every symbolic dim of an input, with the input and its axis."""
    found = []
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape.dims if value.shape is not None else ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found.append((dim, value, axis))
    return found


def _part(dim: Dim | None, sources: list[tuple[ir.SymbolicDim, ir.Value, int]]) -> ir.Node | None:
    """A node that gives this dim as a tensor of one element."""
    if isinstance(dim, int):
        return ir.node("Constant", [], {"value": ir.tensor([dim], dtype=ir.DataType.INT64)})
    for known, value, axis in sources:
        if same(known, dim):
            return ir.node("Shape", [value], {"start": axis, "end": axis + 1})
    return None


def _fold_known(model: ir.Model, symbols: Symbols) -> bool:
    """Constants instead of what is computed from dims that are numbers, such as a scale from the size of a head."""
    constants = symbols.constants(model.graph)
    for value, tensor in constants:
        if not value.uses() or value.is_graph_output():
            continue
        constant = ir.Value(
            name=f"{value.name}/known", type=value.type, shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        tensor.name = constant.name
        model.graph.register_initializer(constant)
        value.replace_all_uses_with(constant)
    if constants:
        Fold(0)(model)
    return bool(constants)

"""Symbols of inputs that the graph itself checks to be 1: a Squeeze removes a dim of that name from an input.

One symbol has one size in all inputs, so such a symbol is 1 wherever it stands.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxopt.graph.shapes.dims import NAMELESS


def checked_sizes(graph: ir.Graph) -> frozenset[str]:
    """The names of the symbols that a Squeeze of an input takes to be 1."""
    names: set[str] = set()
    for value in graph.inputs:
        dims = () if value.shape is None else value.shape.dims
        names |= {name for axis in checked_axes(value) if (name := _name(dims[axis])) is not None}
    return frozenset(names)


def checked_axes(value: ir.Value) -> frozenset[int]:
    """The axes of an input of known rank that a Squeeze removes."""
    rank = 0 if value.shape is None else len(value.shape)
    always = (node for node in value.consumers() if node.graph is value.graph)  # nodes of a branch may never run
    axes = (int(axis) for node in always for axis in _axes(node))
    return frozenset(axis % rank for axis in axes if -rank <= axis < rank)


def _axes(node: ir.Node) -> Collection[int]:
    if (node.domain, node.op_type) != ("", "Squeeze") or len(node.inputs) < 2 or node.inputs[1] is None:
        return ()
    axes = ir.convenience.get_const_tensor(node.inputs[1])
    return () if axes is None or node.inputs[1].is_graph_input() else axes.numpy().ravel().tolist()


def unchecked_shapes(graph: ir.Graph) -> dict[ir.Value, ir.Shape]:
    """The shapes of inputs that have such symbols and no check of their own, with 1 in place of each."""
    ones, shapes = checked_sizes(graph), {}
    for value in graph.inputs if ones else ():
        dims = () if value.shape is None else value.shape.dims
        if not checked_axes(value) and any(_name(dim) in ones for dim in dims):
            shapes[value] = ir.Shape([1 if _name(dim) in ones else dim for dim in dims])
    return shapes


def _name(dim: int | ir.SymbolicDim) -> str | None:
    """The name of a symbol that is the same size wherever it stands."""
    return None if isinstance(dim, int) or dim.value in NAMELESS else dim.value

"""Symbols of inputs whose size the graph itself checks: a node that all others read the input through fails at others.

    Squeeze(x, axes)                  each of these dims is 1
    Reshape(x, [0, 3, 0, 0])          copies all dims but those that it states, so dim 1 is 3

x may have been cast: a model of lower precision casts its inputs first. One symbol has one size in all inputs, so such
a symbol has that size wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxopt.graph.shapes.dims import NAMELESS


def checked_sizes(graph: ir.Graph) -> dict[str, int]:
    """The sizes of the symbols that a node checks, by name."""
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        dims = () if value.shape is None else value.shape.dims
        for axis, size in checked_axes(value).items():
            if (name := _name(dims[axis])) is not None:
                sizes.setdefault(name, size)
    return sizes


def checked_axes(value: ir.Value) -> dict[int, int]:
    """The axes of an input of known rank whose size a node checks, with the size."""
    rank = 0 if value.shape is None else len(value.shape)
    checked: dict[int, int] = {}
    values = [value]
    while values:
        for node in values.pop().consumers():
            if node.graph is not value.graph:  # nodes of a branch may never run
                continue
            sizes = _sizes(node, rank)
            checked |= sizes
            values += node.outputs if _is_cast(node) or (sizes and node.op_type == "Reshape") else ()
    return {axis: checked[axis] for axis in sorted(checked)}


def is_check(node: ir.Node | None) -> bool:
    """Whether a node is a Reshape of an input that does nothing but to check sizes."""
    if node is None or node.op_type != "Reshape":
        return False
    upstream: ir.Node | None = node
    while upstream is not None and (upstream.op_type == "Reshape" or _is_cast(upstream)):
        x = upstream.inputs[0]
        if x is None or x.shape is None or not (_is_cast(upstream) or _sizes(upstream, len(x.shape))):
            return False
        if x.is_graph_input():
            return True
        upstream = x.producer()
    return False


def _is_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.domain == ""


def axes_of(node: ir.Node, rank: int) -> frozenset[int] | None:
    """The constant axes of a Squeeze of a value of this rank, or of an Unsqueeze to it; None where computed."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if axes is None or axes.is_graph_input() else ir.convenience.get_const_tensor(axes)
    numbers = () if tensor is None else [int(number) for number in tensor.numpy().ravel()]
    return frozenset(axis % rank for axis in numbers if -rank <= axis < rank) or None


def _sizes(node: ir.Node, rank: int) -> Mapping[int, int]:
    """What a node that reads an input of this rank says of its dims."""
    if node.domain != "" or node.op_type not in ("Squeeze", "Reshape") or len(node.inputs) < 2:
        return {}
    tensor = None if node.inputs[1] is None else ir.convenience.get_const_tensor(node.inputs[1])
    if tensor is None or node.inputs[1] is None or node.inputs[1].is_graph_input():
        return {}
    numbers = [int(number) for number in tensor.numpy().ravel()]
    if node.op_type == "Squeeze":
        return {axis % rank: 1 for axis in numbers if -rank <= axis < rank}
    if node.attributes.get_int("allowzero", 0) or len(numbers) != rank or min(numbers, default=-1) < 0:
        return {}
    # Where a copied dim is 0, no size is checked; no element is missing then.
    stated = {axis: size for axis, size in enumerate(numbers) if size > 0}
    return stated if len(stated) == 1 else {}  # of two, only the product is checked


def unchecked_shapes(graph: ir.Graph) -> dict[ir.Value, ir.Shape]:
    """The shapes of inputs that have such symbols and no check of their own, with its size in place of each."""
    sizes, shapes = checked_sizes(graph), {}
    for value in graph.inputs if sizes else ():
        dims = () if value.shape is None else value.shape.dims
        if not checked_axes(value) and any(_name(dim) in sizes for dim in dims):
            shapes[value] = ir.Shape([sizes.get(_name(dim) or "", dim) for dim in dims])
    return shapes


def _name(dim: int | ir.SymbolicDim) -> str | None:
    """The name of a symbol that is the same size wherever it stands."""
    return None if isinstance(dim, int) or dim.value in NAMELESS else dim.value

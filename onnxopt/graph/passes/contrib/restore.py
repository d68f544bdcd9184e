"""Nodes that were decomposed are put back where nothing fused a part of them.

A value keeps its anchor, whatever rules do to the nodes around it. Where the results and the operands of the original
node are there, and what only they need are at least two standard nodes and no fused function, the original replaces
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir
from onnx_ir.passes import common

from onnxopt.graph.passes.contrib.decompose import ANCHOR, ORIGINAL, Original
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.contrib_schemas import CONTRIB

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Constant", "Shape"})
_MIN_NODES = 2  # that compute; one node is as good as the original


def restore(model: ir.Model, chosen: Callable[[Original], bool] = lambda _: True) -> int:
    """Put originals back, in place. Returns how many. chosen: which of them may."""
    count = sum(_restore_in(graph, chosen) for graph in model.graphs())
    if count:
        model.opset_imports.setdefault(CONTRIB, 1)
        common.RemoveUnusedNodesPass()(model)
        common.TopologicalSortPass()(model)
        UniqueNamesPass()(model)
    return count


def _restore_in(graph: ir.Graph, chosen: Callable[[Original], bool]) -> int:
    anchored = {value.meta[ANCHOR]: value for value in _values(graph) if ANCHOR in value.meta}
    originals = dict.fromkeys(v.meta[ORIGINAL] for node in graph for v in node.outputs if ORIGINAL in v.meta)
    return sum(_restored(graph, original, anchored) for original in originals if chosen(original))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _restored(graph: ir.Graph, original: Original, anchored: dict[object, ir.Value]) -> bool:
    results = [None if anchor is None else anchored.get(anchor) for anchor in original.outputs]
    operands = [v for v in original.inputs if v is not None and not isinstance(v, ir.TensorProtocol)]
    read = [value for value in results if value is not None and (value.uses() or value.is_graph_output())]
    if not read or not all(anchor in anchored for anchor in operands):
        return False
    unneeded = _needed_by_none_else(read, {anchored[anchor] for anchor in operands})
    if any(node.domain not in ("", "ai.onnx") for node in unneeded):
        return False
    if sum(node.op_type not in _VIEWS for node in unneeded) < _MIN_NODES:
        return False
    inputs = [
        None if v is None else _initializer(graph, v) if isinstance(v, ir.TensorProtocol) else anchored[v]
        for v in original.inputs
    ]
    node = ir.Node(CONTRIB, original.op_type, inputs, original.attributes, num_outputs=len(results), name=original.name)
    graph.insert_before(next(n for n in graph if n in unneeded), node)
    for anchor, old, new in zip(original.outputs, results, node.outputs, strict=True):
        new.name = ""
        if old is not None and old in read:
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            anchored[anchor] = new
    return True


def _needed_by_none_else(results: list[ir.Value], operands: set[ir.Value]) -> set[ir.Node]:
    """The nodes that only these results need; those that compute operands are needed."""
    unneeded: set[ir.Node] = set()
    waiting = [value.producer() for value in results]
    while waiting:
        node = waiting.pop()
        if node is None or node in unneeded or any(value in operands for value in node.outputs):
            continue
        others = (value for value in node.outputs if value not in results)
        if any(v.is_graph_output() or any(use.node not in unneeded for use in v.uses()) for v in others):
            continue
        unneeded.add(node)
        waiting += [value.producer() for value in node.inputs if value is not None]
    return unneeded


def _initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """The graph's initializer that is this tensor, or a new one."""
    for value in graph.initializers.values():
        if value.const_value is tensor:
            return value
    value = ir.Value(
        name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    name, count = tensor.name or "constant", 0
    while value.name in graph.initializers or not value.name:
        value.name, count = f"{name}_{count}", count + 1
    graph.register_initializer(value)
    return value

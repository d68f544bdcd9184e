"""Nodes that were decomposed are put back where they take fewer launches than what became of them.

A value keeps its anchor, whatever rules and kernels do to the nodes around it. Where the results and the operands of
the original node are there, what only the results need computes them alone. The original replaces it where that takes
fewer launches, fused functions among them, so that no file gets slower than it came. Attention in one launch is put
back too, unless a function computes it: the original may read its mask in a smaller form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.passes.contrib.anchors import ANCHORS, ORIGINALS, give
from onnxopt.graph.passes.contrib.attention import ATTENTION
from onnxopt.graph.passes.contrib.decompose import Original
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.contrib_schemas import CONTRIB

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Constant", "Shape"})


_Unneeded = Collection[ir.Node]  # what only the results of an original need


def restore(model: ir.Model) -> int:
    """Put originals back in a model whose kernels are functions, in place. Returns how many."""

    def pays(original: Original, unneeded: _Unneeded) -> bool:
        if original.is_attention:
            return _stayed(original, unneeded, model.functions)
        return sum(node.op_type not in _VIEWS for node in unneeded) > 1 + len(original.narrowed)

    return _restore(model, pays)


def restore_attention(model: ir.Model, recognises: bool) -> int:
    """Put attention back that no kernel will run, before kernels fuse its mask, in place. Returns how much.

    recognises: whether rules recognised attention. Then it is what they made com.microsoft.Attention, else all.
    """

    def pays(original: Original, unneeded: _Unneeded) -> bool:
        mapped = any((node.domain, node.op_type) == (CONTRIB, "Attention") for node in unneeded)
        return original.is_attention and (mapped or not recognises) and _stayed(original, unneeded, model.functions)

    return _restore(model, pays)


def _restore(model: ir.Model, pays: Callable[[Original, _Unneeded], bool]) -> int:
    count = sum(_restore_in(graph, pays) for graph in model.graphs())
    if count:
        model.opset_imports.setdefault(CONTRIB, 1)
        common.RemoveUnusedNodesPass()(model)
        common.TopologicalSortPass()(model)
        UniqueNamesPass()(model)
    return count


def _restore_in(graph: ir.Graph, pays: Callable[[Original, _Unneeded], bool]) -> int:
    anchored = {anchor: value for value in _values(graph) for anchor in value.meta.get(ANCHORS, ())}
    originals = dict.fromkeys(o for node in graph for v in node.outputs for o in v.meta.get(ORIGINALS, ()))
    return sum(_restored(graph, original, anchored, pays) for original in originals)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _restored(
    graph: ir.Graph,
    original: Original,
    anchored: dict[object, ir.Value],
    pays: Callable[[Original, _Unneeded], bool],
) -> bool:
    results = [None if anchor is None else anchored.get(anchor) for anchor in original.outputs]
    operands = [v for v in original.inputs if v is not None and not isinstance(v, ir.TensorProtocol)]
    read = [value for value in results if value is not None and (value.uses() or value.is_graph_output())]
    if not read or not all(anchor in anchored for anchor in operands):
        return False
    unneeded = _needed_by_none_else(read, {anchored[anchor] for anchor in operands})
    if not unneeded or not pays(original, unneeded):
        return False
    inputs = [
        None if v is None else _initializer(graph, v) if isinstance(v, ir.TensorProtocol) else anchored[v]
        for v in original.inputs
    ]
    node = ir.Node(CONTRIB, original.op_type, inputs, original.attributes, num_outputs=len(results), name=original.name)
    place = next(n for n in graph if n in unneeded)
    for position in original.narrowed:
        cast = ir.node("Cast", [inputs[position]], {"to": int(ir.DataType.INT32)})
        graph.insert_before(place, cast)
        node.replace_input_with(position, cast.outputs[0])
    graph.insert_before(place, node)
    for old, new, name in zip(results, node.outputs, original.names, strict=True):
        new.name = name
        if old is not None and old in read:
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            give(new, old)
            anchored |= dict.fromkeys(new.meta[ANCHORS], new)
    return True


def _stayed(original: Original, unneeded: _Unneeded, functions: Mapping[tuple[str, str, str], ir.Function]) -> bool:
    """Whether attention stayed in operators: no function computes it, no rule chose another operator or weights."""
    for node in unneeded:
        if holds_fused(node.domain):
            operators = {inner.op_type for inner in functions[node.op_identifier()]}
            if operators & ATTENTION.keys() or {"MatMul", "Softmax"} <= operators:
                return False
        if node.domain != CONTRIB or node.op_type not in ATTENTION:
            continue
        tensors = [v.const_value for v in node.inputs if v is not None and v.const_value is not None]
        weights = [v for v in original.inputs if isinstance(v, ir.TensorProtocol)]
        if node.op_type != original.op_type or not all(any(t.shape == w.shape for t in tensors) for w in weights):
            return False
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

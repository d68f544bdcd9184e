"""Concats of all parts of a Split read the Split's input.

    a, b = Split(x); Concat(a, b, y) -> Concat(x, y)
    a = Slice(x, 0, n), b = Slice(x, n, 2 n) -> a, b = Split(x)

A part of a Split that is the only one that is read becomes a Slice, so that nobody writes the others.
TorchScript writes chunk as Slices. Of halves, those of channels of maps and of the last dim of rows are split; those of
heads stay Slices, as rotary embedding is recognised by them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import integers
from onnxopt.graph.passes.new_nodes import NewNodes

_HALVED = ((2, 1), (3, 2), (4, 1))  # ranks and axes


class JoinedSplitsPass(ir.passes.InPlacePass):
    """The pass. Shapes must have been inferred, the model has opset 13 or later, and new nodes need names."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for graph in model.graphs():
            changed |= bool(_join_slices(graph))
            for node in [n for n in graph if n.op_type == "Concat" and n.domain == ""]:
                changed |= bool(_merge(node))
            for node in [n for n in graph if n.op_type == "Split" and n.domain == ""]:
                changed |= _slice(node)
        return ir.passes.PassResult(model, changed)


def _join_slices(graph: ir.Graph) -> int:
    """Put a Split in the place of Slices that cut a tensor into equal parts. Of how many tensors."""
    cuts: dict[tuple[ir.Value, int], dict[tuple[int, int], list[ir.Node]]] = {}
    for node in graph:
        if (cut := _cut(node)) is not None:
            source, axis, bounds = cut
            cuts.setdefault((source, axis), {}).setdefault(bounds, []).append(node)
    return sum(_split(graph, source, axis, parts) for (source, axis), parts in cuts.items())


def _cut(node: ir.Node) -> tuple[ir.Value, int, tuple[int, int]] | None:
    """Tensor, axis, begin and end of a Slice that a node computes."""
    source = node.inputs[0] if node.op_type == "Slice" and node.domain == "" else None
    if source is None or source.shape is None or len(node.inputs) < 4:
        return None
    bounds = [integers(value) for value in node.inputs[1:5]]
    if any(bound is None or len(bound) != 1 for bound in bounds) or source.producer() is None:
        return None
    begin, end, axis, *step = (bound[0] for bound in bounds if bound is not None)
    rank = len(source.shape)
    if rank < 2 or step not in ([], [1]):
        return None
    size = source.shape[axis]
    if not isinstance(size, int) or node.outputs[0].is_graph_output():
        return None
    return source, axis % rank, slice(begin, end).indices(size)[:2]


def _split(graph: ir.Graph, source: ir.Value, axis: int, parts: dict[tuple[int, int], list[ir.Node]]) -> bool:
    size, count, bounds = source.shape[axis], len(parts), sorted(parts)  # type: ignore[index]
    if not isinstance(size, int) or count < 2 or size % count:
        return False
    if count == 2 and (len(source.shape or ()), axis) not in _HALVED:
        return False
    length = size // count
    if bounds != [(k, k + length) for k in range(0, size, length)]:
        return False
    nodes = {node for part in parts.values() for node in part}
    new = NewNodes(graph, next(node for node in graph if node in nodes))
    sizes = new.constant(np.full(count, length, np.int64))
    split = new.add("Split", [source, sizes], source.dtype, [ir.AttrInt64("axis", axis)], count).producer()
    assert split is not None
    for bound, value in zip(bounds, split.outputs, strict=True):
        value.shape = parts[bound][0].outputs[0].shape
        for node in parts[bound]:
            node.outputs[0].replace_all_uses_with(value)
            graph.remove(node, safe=True)
    return True


def _merge(concat: ir.Node) -> bool:
    """Let a Concat read the inputs of Splits whose parts it joins again. Whether there are any."""
    operands, joins, k = [], False, 0
    while k < len(concat.inputs):
        split = _merged_at(concat, k)
        if split is None:
            operands.append(concat.inputs[k])
            k += 1
        else:
            operands.append(split.inputs[0])
            joins = True
            k += len(split.outputs)
    if not joins:
        return False
    graph, result = concat.graph, concat.outputs[0]
    assert graph is not None
    if len(operands) == 1 and operands[0] is not None and not result.is_graph_output():
        result.replace_all_uses_with(operands[0])
        graph.remove(concat, safe=True)
        return True
    merged = ir.Node("", "Concat", operands, [ir.AttrInt64("axis", _axis(concat))], name=concat.name)
    merged.outputs[0].name, merged.outputs[0].type, merged.outputs[0].shape = result.name, result.type, result.shape
    graph.insert_before(concat, merged)
    result.replace_all_uses_with(merged.outputs[0], replace_graph_outputs=True)
    graph.remove(concat, safe=True)
    return True


def _merged_at(concat: ir.Node, first: int) -> ir.Node | None:
    """The Split whose parts are the Concat's operands from `first` on, along the same axis."""
    value = concat.inputs[first]
    split = None if value is None else value.producer()
    if split is None or split.op_type != "Split" or split.domain != "" or split.graph is not concat.graph:
        return None
    parts = concat.inputs[first : first + len(split.outputs)]
    if len(split.outputs) < 2 or list(parts) != list(split.outputs):
        return None
    rank = None if value is None or value.shape is None else len(value.shape)
    axes = (_axis(concat), _axis(split))
    same = axes[0] == axes[1] or (rank is not None and axes[0] % rank == axes[1] % rank)
    return split if same else None


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0)


def _slice(split: ir.Node) -> bool:
    """Put a Slice in the place of a Split of which one part is read. Whether that was so."""
    used = [k for k, v in enumerate(split.outputs) if v.uses() or v.is_graph_output()]
    if len(used) != 1 or split.outputs[used[0]].is_graph_output() or split.graph is None:
        return False
    axis, value = _axis(split), split.outputs[used[0]]
    sizes = [None if v.shape is None else v.shape[axis] for v in split.outputs[: used[0] + 1]]
    static = [s for s in sizes if isinstance(s, int)]
    if len(static) != len(sizes) or len(split.outputs) < 2:
        return False
    start, end = sum(static[:-1]), sum(static)
    bounds = []
    for number in (start, end, axis):
        constant = ir.node("Constant", [], {"value": ir.tensor([number], dtype=ir.DataType.INT64)})
        split.graph.insert_before(split, constant)
        bounds.append(constant.outputs[0])
    part = ir.Node("", "Slice", [split.inputs[0], *bounds], name=split.name)
    part.outputs[0].name, part.outputs[0].type, part.outputs[0].shape = value.name, value.type, value.shape
    split.graph.insert_before(split, part)
    value.replace_all_uses_with(part.outputs[0])
    split.graph.remove(split, safe=True)
    return True

"""Normalizations over groups of channels, which stay as they are between two Transposes.

GroupNormalization and InstanceNormalization of [N, C, H, W], or of volumes, are one node. Exporters spell groups as
three:

    x [N, C, H, W] -> Reshape [N, groups, -1] -> InstanceNormalization -> Reshape to x's shape

The two Transposes around them cancel against those of their neighbours, or become part of a kernel.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.layout.forms import CONVOLVED, Form, is_map, rank
from onnxopt.graph.match import is_constant, only_consumer
from onnxopt.graph.shapes.value_dims import same
from onnxopt.program.group_norm import MAX_GROUP

_GROUPED = 3  # dims of what InstanceNormalization reads in the three nodes
_SINCE = {"GroupNormalization": 21, "InstanceNormalization": 6}  # scale and bias of one element a channel


def forms(graph: ir.Graph, opset: int) -> dict[ir.Node, Form]:
    """The forms of the nodes of norms over groups whose shapes are known well enough. Shapes have been inferred."""
    by_node: dict[ir.Node, Form] = {}
    for node in graph:
        if node.domain != "" or opset < _SINCE.get(node.op_type, opset + 1) or len(node.outputs) != 1:
            continue
        if is_map(node.inputs[0]) and _is_of_groups(node.inputs[0], groups_of(node)):
            by_node[node] = Form((0,), between=True)
        elif (ends := _decomposed(node)) is not None:
            by_node[ends[0]] = Form((0,), (), between=True)
            by_node[ends[1]] = Form((), (0,), between=True, begins=ends[0])
    return by_node


def groups_of(node: ir.Node) -> int | None:
    """The groups of a norm of a map, None where they are unknown."""
    x = node.inputs[0]
    if node.op_type == "GroupNormalization":
        return node.attributes.get_int("num_groups", 0) or None
    channels = x.shape[1] if x is not None and x.shape is not None else None
    return channels if isinstance(channels, int) else None


def reshapes(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The Reshapes before and after an InstanceNormalization, where only these nodes read each other's results."""
    grouped, normed = node.inputs[0], node.outputs[0]
    first, last = grouped.producer() if grouped is not None else None, only_consumer(normed)
    if node.op_type != "InstanceNormalization" or grouped is None or first is None or last is None:
        return None
    if not (_is_reshape(first) and _is_reshape(last)) or last.inputs[0] is not normed:
        return None
    private = only_consumer(grouped) is node and first.inputs[0] is not None and last.inputs[1] is not None
    return (first, last) if private and is_constant(first.inputs[1]) else None


def _decomposed(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The Reshapes around an InstanceNormalization that norms groups of a map, None where there are none."""
    ends, grouped = reshapes(node), node.inputs[0]
    if ends is None or grouped is None or grouped.shape is None or len(grouped.shape) != _GROUPED:
        return None
    x, y = ends[0].inputs[0], ends[1].outputs[0]
    if x is None or not is_map(x) or rank(x) != rank(y) or not same(x.shape[0], grouped.shape[0]):  # type: ignore[index]
        return None
    groups = grouped.shape[1]
    if not isinstance(groups, int) or not _is_of_groups(x, groups) or not _same_dims(x, y):
        return None
    return ends


def _is_of_groups(x: ir.Value | None, groups: int | None) -> bool:
    """Whether x has floats, known channels, and groups that a kernel can take."""
    channels = x.shape[1] if x is not None and x.shape is not None else None
    if x is None or x.dtype not in CONVOLVED or groups is None or not isinstance(channels, int):
        return False
    return channels > 0 and channels % groups == 0 and channels // groups <= MAX_GROUP


def _same_dims(x: ir.Value, y: ir.Value) -> bool:
    assert x.shape is not None and y.shape is not None
    return all(same(a, b) for a, b in zip(x.shape, y.shape, strict=True))


def _is_reshape(node: ir.Node) -> bool:
    return node.op_type == "Reshape" and node.domain == ""

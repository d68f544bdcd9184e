"""A normalization over groups in the form that the layout pass writes, and the values around it.

x [N, H, W, C] -> Transpose -> GroupNormalization | InstanceNormalization -> Transpose -> y [N, H, W, C]
x -> Transpose -> Reshape [N, groups, -1] -> InstanceNormalization -> Reshape -> Transpose -> y

Volumes have a depth after N.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.fusion import channels_last
from onnxopt.fusion.core_lowering import CoreMatch, Step
from onnxopt.graph.layout import group_norms
from onnxopt.graph.layout.orders import RANKS, turns_first, turns_last
from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import FLOATS
from onnxopt.program.group_norm import MAX_GROUP

NORMS = frozenset({"GroupNormalization", "InstanceNormalization"})
_SINCE = {"GroupNormalization": 21, "InstanceNormalization": 6}


def norm(node: ir.Node, shapes: Shapes, opset: int) -> CoreMatch | str:
    """The norm of a GroupNormalization or InstanceNormalization, or the reason why no kernel can run it in NHWC."""
    if opset < _SINCE[node.op_type] or None in node.inputs[:3] or len(node.inputs) != 3:
        return f"{node.op_type} has one scale and bias a channel from opset {_SINCE[node.op_type]} on"
    ends = group_norms.reshapes(node)
    nodes = _between(node, shapes) if ends is None else _around(node, *ends, shapes)
    if isinstance(nodes, str):
        return nodes
    x, scale, bias = nodes[0].inputs[0], node.inputs[1], node.inputs[2]
    y = nodes[-1].outputs[0]
    assert x is not None and scale is not None and bias is not None
    dims, dtype = shapes.dims(x), shapes.dtype(x)
    channels = dims[-1] if dims is not None and len(dims) in RANKS else None
    groups = _groups(node, ends is not None, channels, shapes)
    if not isinstance(channels, int) or groups is None or channels < 1 or channels % groups:
        return f"The channels of `{x.name}` or their groups are not known"
    if channels // groups > MAX_GROUP:
        return f"{node.op_type} has groups of {channels // groups} channels, more than {MAX_GROUP}"
    if dtype is None or dtype.name not in FLOATS or any(shapes.dtype(v) != dtype for v in (scale, bias, y)):
        return f"The dtype of `{x.name}` is not one of {', '.join(FLOATS)}"
    each = groups if ends is not None else channels
    if any(shapes.dims(v) != (each,) for v in (scale, bias)):
        return f"{node.op_type} has not {each} elements of scale and bias"
    form = "group" if ends is not None and groups != channels else "channel"
    factors = [] if _is_everywhere(scale, 1.0) else [Step("mul", scale, form)]
    terms = [] if _is_everywhere(bias, 0.0) else [Step("add", bias, form)]
    return CoreMatch(
        nodes=nodes,
        x=x,
        y=y,
        operands={},
        first=(x, scale, bias),
        fields={"channels": channels, "groups": groups, "epsilon": node.attributes.get_float("epsilon", 1e-5)},
        layout=tuple(n for n in nodes if n.op_type in ("Transpose", "Shape")),
        steps=(*factors, *terms),
    )


def _is_everywhere(value: ir.Value, number: float) -> bool:
    """Whether a value is a constant of this number alone."""
    if value.const_value is None or value.is_graph_input():
        return False
    return bool((value.const_value.numpy().astype(np.float64) == number).all())


def _groups(node: ir.Node, spelled: bool, channels: object, shapes: Shapes) -> int | None:
    if node.op_type == "GroupNormalization":
        return node.attributes.get_int("num_groups", 0) or None
    dims = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    groups = dims[1] if spelled and dims is not None else channels
    return groups if isinstance(groups, int) and groups > 0 else None


def _between(node: ir.Node, shapes: Shapes) -> tuple[ir.Node, ...] | str:
    around = channels_last.between_transposes(node, shapes)
    return around if isinstance(around, str) else (around[0], node, around[1])


def _around(node: ir.Node, first: ir.Node, last: ir.Node, shapes: Shapes) -> tuple[ir.Node, ...] | str:
    """The nodes of a norm that is spelled as three."""
    whole, result, dims = first.inputs[0], last.outputs[0], last.inputs[1]
    assert whole is not None and dims is not None
    turn, readers = whole.producer(), list(result.uses())
    if turn is None or not turns_first(turn) or whole.is_graph_output():
        return f"The operand of {node.op_type} is NCHW"
    if len(readers) != 1 or result.is_graph_output() or not turns_last(readers[0].node):
        return f"The result of {node.op_type} is NCHW, or other nodes read it too"
    of, grouped = shapes.dims(whole), shapes.dims(first.outputs[0])
    if (
        of is None
        or grouped is None
        or (len(of) not in RANKS or len(grouped) != 3)
        or of[0] is None
        or of[0] != grouped[0]
    ):
        return f"The Reshape before {node.op_type} leaves no samples and groups"
    if not shapes.same(whole, result):
        return f"The Reshape after {node.op_type} does not bring its operand's shape back"
    inside = [turn]
    shape = dims.producer()
    if not is_constant(dims):
        if shape is None or shape.op_type != "Shape" or shape.inputs[0] is not whole or len(dims.uses()) != 1:
            return f"The Reshape after {node.op_type} takes its shape from elsewhere"
        inside.append(shape)
    if {u.node for u in whole.uses()} - {first, *inside}:
        return f"Other nodes read the operand of {node.op_type} too"
    return (*inside, first, node, last, readers[0].node)

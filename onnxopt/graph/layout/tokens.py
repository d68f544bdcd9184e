"""Tokens: [N, C, H, W] flattened and moved to [N, H W, C], and back. Channels last needs no Transpose for either.
Volumes have a depth before H.

Transpose(Reshape | Squeeze (x, [N, C, H W]), [0, 2, 1]) -> Reshape(Transpose(x, [0, 2, 3, 1]), [N, H W, C])
Reshape | Unsqueeze (Transpose(y, [0, 2, 1]), [N, C, H, W]) -> Transpose(Reshape(y, [N, H, W, C]), [0, 3, 1, 2])

The pixels of several maps that are computed in channels last are joined in that order. Kernels fuse a Concat whose
parts have known sizes; others get one Transpose in place of one for each map:

Concat(Reshape(Transpose(y, [0, 3, 1, 2]), [N, C, H W]), ..., axis=2)
    -> Transpose(Concat(Reshape(y, [N, H W, C]), ..., axis=1), [0, 2, 1])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.layout.forms import is_map, rank
from onnxopt.graph.layout.orders import to_channels_first, to_channels_last, transposes, turns_first
from onnxopt.graph.match import constant, is_private
from onnxopt.graph.shapes.value_dims import same

_SWAP = (0, 2, 1)
_IMAGE = 4  # dims


def turn_tokens(graph: ir.Graph) -> bool:
    """Change both forms in place, where shapes are known; whether there was any. Nodes without use remain."""
    changed = False
    for node in list(graph):
        if transposes(node, _SWAP):
            changed |= _flattened(node) or _unflattened(node)
    return changed


def _flattened(node: ir.Node) -> bool:
    flat = node.inputs[0]
    reshape = flat.producer() if flat is not None else None
    x = reshape.inputs[0] if reshape is not None and reshape.op_type in ("Reshape", "Squeeze") else None
    if flat is None or x is None or not is_map(x) or rank(flat) != len(_SWAP):
        return False
    assert x.shape is not None and flat.shape is not None
    channels = x.shape[1]
    if not isinstance(channels, int) or flat.shape[1] != channels or not same(flat.shape[0], x.shape[0]):
        return False
    count = flat.shape[2] if isinstance(flat.shape[2], int) else -1
    order = to_channels_last(len(x.shape))
    last = _before(node, "Transpose", [x], {"perm": order}, f"{flat.name}_nhwc")
    last.shape = ir.Shape([x.shape[axis] for axis in order])
    squeezes = reshape is not None and reshape.op_type == "Squeeze" and len(x.shape) == _IMAGE
    if squeezes and x.shape[2] == 1:  # no -1, which fails on no elements
        _replace(node, "Squeeze", [last, _dims(graph_of(node), [1])])
    else:
        _replace(node, "Reshape", [last, _dims(graph_of(node), [0, count, channels])])
    return True


def _unflattened(node: ir.Node) -> bool:
    y, swapped = node.inputs[0], node.outputs[0]
    readers = list(swapped.uses())
    if y is None or rank(y) != len(_SWAP) or swapped.is_graph_output() or len(readers) != 1:
        return False
    reshape = readers[0].node
    if reshape.op_type not in ("Reshape", "Unsqueeze") or reshape.domain != "" or not is_map(reshape.outputs[0]):
        return False
    x = reshape.outputs[0]
    assert x.shape is not None and y.shape is not None
    channels = x.shape[1]
    if not isinstance(channels, int) or y.shape[2] != channels or not same(y.shape[0], x.shape[0]):
        return False
    if reshape.op_type == "Unsqueeze":
        dims = _dims(graph_of(reshape), [1]) if x.shape[2] == 1 and len(x.shape) == _IMAGE else None
    else:
        dims = _in_channels_last(reshape, channels, len(x.shape))
    if dims is None:
        return False
    whole = _before(reshape, reshape.op_type, [y, dims], {}, f"{x.name}_nhwc")
    whole.shape = ir.Shape([x.shape[axis] for axis in to_channels_last(len(x.shape))])
    _replace(reshape, "Transpose", [whole], {"perm": to_channels_first(len(x.shape))})
    return True


def join_tokens(graph: ir.Graph) -> int:
    """Change the third form in place; how often. Nodes without use remain."""
    count = 0
    for node in list(graph):
        if node.op_type != "Concat" or node.domain != "" or node.attributes.get_int("axis", 0) not in (2, -1):
            continue
        maps = [found for found in map(_flattened_map, node.inputs) if found is not None]
        if len(maps) < len(node.inputs) or all(isinstance(v.shape[2], int) for v in node.inputs if v and v.shape):
            continue
        joined = [_before(node, "Reshape", [y, _dims(graph, [0, -1, c])], {}, f"{flat}_nhwc") for y, c, flat in maps]
        whole = _before(node, "Concat", joined, {"axis": 1}, f"{node.outputs[0].name}_nhwc")
        _replace(node, "Transpose", [whole], {"perm": _SWAP})
        count += 1
    return count


def _flattened_map(flat: ir.Value | None) -> tuple[ir.Value, int, str] | None:
    """The map [N, H, W, C] whose pixels a value [N, C, H W] holds in the other order, C, and the value's name."""
    reshape = flat.producer() if flat is not None else None
    x = reshape.inputs[0] if reshape is not None and reshape.op_type == "Reshape" and reshape.domain == "" else None
    turn = x.producer() if x is not None else None
    if flat is None or x is None or turn is None or not turns_first(turn) or not is_map(x):
        return None
    if not is_private(flat) or not is_private(x) or rank(flat) != len(_SWAP) or turn.inputs[0] is None:
        return None
    assert x.shape is not None and flat.shape is not None
    channels = x.shape[1]
    if not isinstance(channels, int) or flat.shape[1] != channels or not same(flat.shape[0], x.shape[0]):
        return None
    return turn.inputs[0], channels, str(flat.name)


def _in_channels_last(reshape: ir.Node, channels: int, count: int) -> ir.Value | None:
    """What a Reshape of [N, C, H W] to [N, C, H, W], which is `count` dims, asks for, in channels last; None where that
    cannot be said."""
    wanted = reshape.inputs[1]
    target = constant(wanted)
    zeros_stay = reshape.attributes.get_int("allowzero", 0) != 0
    if wanted is None or (target is None and zeros_stay):
        return None
    if target is None:  # computed; a 0 in place of H copies the same dim of both operands
        order = _dims(graph_of(reshape), to_channels_last(count))
        return _before(reshape, "Gather", [wanted, order], {"axis": 0}, f"{reshape.outputs[0].name}_nhwc_dims")
    if (target[2:] == 0).any():
        return None  # copies of dims of y, which come in another order
    return _dims(graph_of(reshape), [-1 if target[0] == -1 else 0, *map(int, target[2:]), channels])


def graph_of(node: ir.Node) -> ir.Graph:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


def _dims(graph: ir.Graph, dims: Sequence[int]) -> ir.Value:
    name = "tokens_" + "_".join(map(str, dims)).replace("-", "m")
    if name not in graph.initializers:
        tensor = ir.Tensor(np.array(dims, np.int64), name=name)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        graph.register_initializer(value)
    return graph.initializers[name]


def _before(node: ir.Node, op_type: str, inputs: Sequence[ir.Value], attributes: dict, name: str) -> ir.Value:
    new = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), num_outputs=1, name=name)
    new.outputs[0].name, new.outputs[0].type = name, inputs[0].type
    graph_of(node).insert_before(node, new)
    return new.outputs[0]


def _replace(node: ir.Node, op_type: str, inputs: Sequence[ir.Value], attributes: dict | None = None) -> None:
    old = node.outputs[0]
    result = _before(node, op_type, inputs, attributes or {}, str(old.name))
    result.type, result.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    graph_of(node).remove(node, safe=True)

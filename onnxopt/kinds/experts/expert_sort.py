"""The order of rows by expert: how exporters sort what tokens chose, count each expert's rows, and go back.

    sorted, order = TopK(flat(ids), all, smallest first)      ends = CumSum(how often each expert is in `sorted`)
    token of a row = order / chosen                           back[order] = 0, 1, 2, ...

Each function says whether a value is one of these, and adds the nodes that compute it to `nodes`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxopt.fusion.operands import constant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.experts.products import is_number, producer

Nodes = dict[ir.Node, None]
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


@dataclasses.dataclass(frozen=True)
class Order:
    """ids: [tokens, chosen]. sorted, order: [tokens * chosen]."""

    ids: ir.Value
    sorted: ir.Value
    order: ir.Value
    chosen: int


def find(order: ir.Value | None, shapes: Shapes, nodes: Nodes) -> Order | str:
    """The sorting whose positions `order` are, or what keeps it from being one."""
    top = producer(order, "TopK")
    if top is None or order is not top.outputs[1] or top.attributes.get_int("largest", 1) != 0:
        return "The rows are not ordered by a TopK of the experts' ids, smallest first"
    flat = producer(top.inputs[0], "Reshape")
    if flat is None or not is_number(flat.inputs[1], -1) or top.attributes.get_int("sorted", 1) != 1:
        return "The rows are not ordered by a TopK of the experts' ids, smallest first"
    ids = flat.inputs[0]
    dims = shapes.dims(ids) if ids is not None else None
    if ids is None or dims is None or len(dims) != 2 or not isinstance(dims[1], int):
        return "The number of experts that a token chooses is not known"
    if not _counts(top.inputs[1], flat.outputs[0], shapes, nodes):
        return "The TopK that orders the rows may not keep all of them"
    nodes |= dict.fromkeys((flat, top))
    return Order(ids, top.outputs[0], top.outputs[1], dims[1])


def are_of(ids: ir.Value, experts: int, shapes: Shapes) -> bool:
    """Whether ids are those of the largest of so many values."""
    top = producer(ids, "TopK")
    if top is None or ids is not top.outputs[1] or top.inputs[0] is None:
        return False
    dims = shapes.dims(top.inputs[0])
    return dims is not None and dims[-1] == experts and top.attributes.get_int("axis", -1) in (-1, len(dims) - 1)


def are_tokens(value: ir.Value | None, order: Order, nodes: Nodes) -> bool:
    """Whether a value is order / chosen, rounded down as exporters spell it: what they subtract is 0 for an order."""
    quotient = value
    less = producer(value, "Sub")
    if less is not None:
        quotient, rounding = less.inputs
        cast = producer(rounding, "Cast")
        both = producer(cast.inputs[0], "And") if cast is not None else None
        if cast is None or both is None or not any(_is_below_zero(v, order.order, nodes) for v in both.inputs):
            return False
        if not all(_is_of(v, order.order, nodes) for v in both.inputs):
            return False
        nodes |= dict.fromkeys((less, cast, both))
    divided = producer(quotient, "Div")
    if divided is None or divided.inputs[0] is not order.order or not is_number(divided.inputs[1], order.chosen):
        return False
    nodes[divided] = None
    return True


def _is_below_zero(value: ir.Value | None, order: ir.Value, nodes: Nodes) -> bool:
    """Whether a value is order < 0, perhaps compared with True."""
    equal = producer(value, "Equal")
    less = producer(equal.inputs[0], "Less") if equal is not None else producer(value, "Less")
    if equal is not None and not is_number(equal.inputs[1], True):
        return False
    return less is not None and less.inputs[0] is order and is_number(less.inputs[1], 0)


def _is_of(value: ir.Value | None, order: ir.Value, nodes: Nodes) -> bool:
    """Whether a value is computed of the order and constants alone. Adds the nodes."""
    if value is order or (value is not None and value.const_value is not None and not value.is_graph_input()):
        return True
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in ("Less", "Equal", "Mod", "Cast") or node.domain != "":
        return False
    if not all(_is_of(v, order, nodes) for v in node.inputs):
        return False
    nodes[node] = None
    return True


def are_ends(value: ir.Value, order: Order, experts: int, nodes: Nodes) -> bool:
    """Whether a value says where the rows of each expert end in the order."""
    total = producer(_before_casts(value, nodes), "CumSum")
    if total is None or not is_number(total.inputs[1], 0):
        return False
    if any(total.attributes.get_int(name, 0) for name in ("exclusive", "reverse")):
        return False
    scatter = producer(_before_casts(total.inputs[0], nodes), "ScatterElements")
    if scatter is None or scatter.attributes.get_string("reduction", "none") != "add":
        return False
    zeros, bins, ones = scatter.inputs
    start = zeros.const_value if zeros is not None and not zeros.is_graph_input() else None
    if start is None or start.shape != (experts,) or np.any(start.numpy()):
        return False
    if scatter.attributes.get_int("axis", 0) not in (0, -1) or not _are_bins(bins, order, experts, nodes):
        return False
    if not _are_all(ones, 1, bins, nodes):
        return False
    nodes |= dict.fromkeys((total, scatter))
    return True


def _before_casts(value: ir.Value | None, nodes: Nodes) -> ir.Value | None:
    while (cast := producer(value, "Cast")) is not None:
        nodes[cast] = None
        value = cast.inputs[0]
    return value


def _are_bins(value: ir.Value | None, order: Order, experts: int, nodes: Nodes) -> bool:
    """Whether a value is the sorted ids: as they are, or as Clip(int(float(ids) / width), 0, experts - 1)."""
    if value is order.sorted:
        return True
    clip = producer(value, "Clip")
    whole = producer(clip.inputs[0], "Cast") if clip is not None else None
    divided = producer(whole.inputs[0], "Div") if whole is not None else None
    wide = producer(divided.inputs[0], "Cast") if divided is not None else None
    if clip is None or whole is None or divided is None or wide is None or wide.inputs[0] is not order.sorted:
        return False
    width = constant(divided.inputs[1])
    if width is None or width.dtype != ir.DataType.FLOAT:
        return False
    if wide.attributes.get_int("to") != ir.DataType.FLOAT or whole.attributes.get_int("to") not in _INTEGERS:
        return False
    if len(clip.inputs) != 3 or not is_number(clip.inputs[1], 0) or not is_number(clip.inputs[2], experts - 1):
        return False
    ids = np.arange(experts)
    quotients = ids.astype(np.float32) / width.numpy().reshape(()).astype(np.float32)
    if not np.array_equal(np.clip(quotients.astype(np.int64), 0, experts - 1), ids):
        return False
    nodes |= dict.fromkeys((clip, whole, divided, wide))
    return True


def are_back(value: ir.Value | None, order: Order, shapes: Shapes, nodes: Nodes) -> bool:
    """Whether a value is the inverse of the order."""
    scatter = producer(value, "ScatterND")
    if scatter is None or scatter.attributes.get_string("reduction", "none") != "none":
        return False
    into, indices, updates = scatter.inputs
    if not is_column(indices, order.order, nodes) or not _are_all(into, None, order.order, nodes):
        return False
    if shapes.dims(scatter.outputs[0]) != shapes.dims(order.order):
        return False
    if not _is_count(updates, order.order, shapes, nodes):
        return False
    nodes[scatter] = None
    return True


def is_column(value: ir.Value | None, of: ir.Value | None, nodes: Nodes) -> bool:
    """Whether a value is another one of one dim, with a last dim of 1."""
    node = producer(value, "Unsqueeze")
    if node is None or node.inputs[0] is not of or not (is_number(node.inputs[1], -1) or is_number(node.inputs[1], 1)):
        return False
    nodes[node] = None
    return True


def _are_all(value: ir.Value | None, number: int | None, like: ir.Value | None, nodes: Nodes) -> bool:
    """Whether a value is as long as another one of one dim and holds this number everywhere, None for any."""
    if value is not None and value.const_value is not None and not value.is_graph_input():
        return number is None or bool(np.all(value.const_value.numpy() == number))
    node = producer(value, "Expand")
    shape = producer(node.inputs[1], "Shape") if node is not None else None
    if (
        node is None
        or shape is None
        or shape.inputs[0] is not like
        or not (number is None or is_number(node.inputs[0], number))
    ):
        return False
    nodes |= dict.fromkeys((shape, node))
    return True


def _is_count(value: ir.Value | None, like: ir.Value, shapes: Shapes, nodes: Nodes) -> bool:
    """Whether a value is 0, 1, 2, ... as long as another one."""
    dims = shapes.dims(like)
    if value is not None and value.const_value is not None and not value.is_graph_input():
        counted = value.const_value.numpy()
        return dims == (len(counted),) and np.array_equal(counted, np.arange(len(counted)))
    node = producer(value, "Range")
    if node is None or not is_number(node.inputs[0], 0) or not is_number(node.inputs[2], 1):
        return False
    squeeze = producer(node.inputs[1], "Squeeze")
    shape = producer(squeeze.inputs[0], "Shape") if squeeze is not None else None
    if squeeze is None or shape is None or shape.inputs[0] is not like:
        return False
    nodes |= dict.fromkeys((shape, squeeze, node))
    return True


def _counts(value: ir.Value | None, of: ir.Value, shapes: Shapes, nodes: Nodes) -> bool:
    """Whether a value is the number of another one's elements, as a tensor of one element."""
    dims = shapes.dims(of)
    if dims is not None and len(dims) == 1 and isinstance(dims[0], int) and is_number(value, dims[0]):
        return True
    shape = producer(value, "Shape")
    if shape is None or shape.inputs[0] is not of:
        return False
    nodes[shape] = None
    return True

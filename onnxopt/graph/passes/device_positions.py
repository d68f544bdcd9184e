"""Integers computed from shapes are written to the device by Range, where nodes on the device read them.

    Cast(s) * frequencies    ->    Cast(Range(s, s + 1, 1)) * frequencies

s is computed from dims, such as the number of tokens in the cache, and so lies on the host. ONNX Runtime would copy it
to the device in every run, which a CUDA graph cannot contain. Range reads s on the host and writes to the device.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.placement.place import HOST_INPUTS, Placement, place
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes.infer import Knowledge

_RESHAPING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})


class CountOnDevicePass(ir.passes.InPlacePass):
    """Replaces integers computed from shapes, where nodes on the device depend on their values."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        placed = place(model.graph)
        readers = _readers(placed)
        if not readers:
            return ir.passes.PassResult(model, False)
        inferred = infer.infer(model)
        moved: dict[ir.Value, ir.Value] = {}
        for node in readers:
            if any(inferred.contents(v) is not None for v in node.outputs):
                continue  # a reader of this node's output is among `readers`, and its operand is replaced
            for k, value in enumerate(node.inputs):
                if (
                    value is not None
                    and k not in HOST_INPUTS.get(node.op_type, ())
                    and _is_count(value, placed, inferred)
                ):
                    if value not in moved:
                        moved[value] = _counted(model.graph, value, inferred)
                    node.replace_input_with(k, moved[value])
        return ir.passes.PassResult(model, bool(moved))


def _readers(placed: Placement) -> list[ir.Node]:
    """Nodes whose operands ORT copies to the device, and nodes on the host that compute these operands.

    A node that reads an input of the model beside a shape counts too: it is on the host, and the input is copied there.
    Nodes on the host whose results are read on the host are left out.
    """
    pending = [copy.node for copy in placed.copies if copy.to_device or copy.value.is_graph_input()]
    readers: dict[ir.Node, None] = {}
    while pending:
        node = pending.pop()
        if node in readers or (node in placed.host and any(_read_on_host(v) for v in node.outputs)):
            continue
        readers[node] = None
        producers = (v.producer() for v in node.inputs if v is not None)
        pending += [p for p in producers if p is not None and p in placed.host]
    return list(readers)


def _read_on_host(value: ir.Value) -> bool:
    return any(k in HOST_INPUTS.get(node.op_type, ()) for node, k in value.uses())


def _is_count(value: ir.Value, placed: Placement, inferred: Knowledge) -> bool:
    """Whether a value is one integer on the host, computed from symbolic dims."""
    held = inferred.contents(value)
    if held is None or held.size != 1 or value not in placed.host_values or value.dtype != ir.DataType.INT64:
        return False
    return not isinstance(held.flat[0], int)


def _counted(graph: ir.Graph, value: ir.Value, inferred: Knowledge) -> ir.Value:
    """A new value on the device that equals `value` in number and shape."""
    producer, rank = value.producer(), len(inferred.dims(value) or ())
    assert producer is not None  # contents of an input are not known
    one = _constant(graph, f"{value.name}_one", np.array(1, np.int64))
    start, nodes = _scalar(graph, _computed(value), inferred, value.name)
    nodes.append(ir.node("Add", inputs=[start, one]))
    nodes.append(ir.node("Range", inputs=[start, nodes[-1].outputs[0], one]))
    if rank == 0:
        nodes.append(ir.node("Squeeze", inputs=[nodes[-1].outputs[0]]))
    elif rank > 1:
        axes = _constant(graph, f"{value.name}_axes", np.arange(rank - 1, dtype=np.int64))
        nodes.append(ir.node("Unsqueeze", inputs=[nodes[-1].outputs[0], axes]))
    for k, node in enumerate(nodes):
        node.outputs[0].name = f"{value.name}_counted_{k}"
        node.outputs[0].dtype = ir.DataType.INT64
    graph.insert_after(producer, nodes)
    return nodes[-1].outputs[0]


def _computed(value: ir.Value) -> ir.Value:
    """The value of which an integer is a copy with other dims."""
    while (producer := value.producer()) is not None and producer.op_type in _RESHAPING and producer.inputs[0]:
        value = producer.inputs[0]
    return value


def _scalar(graph: ir.Graph, value: ir.Value, inferred: Knowledge, name: str | None) -> tuple[ir.Value, list[ir.Node]]:
    """The one integer of a value as a scalar, and the nodes that compute it. name: the constants' names begin with it.

    Gather copies it. What Squeeze or Reshape returns shares the memory of its operand in ONNX Runtime, which then let
    the Add behind it write there, before Range had read it from the device: Range counted from s + 1 to s + 1 (1.31.1,
    CUDA).
    """
    rank, nodes = len(inferred.dims(value) or ()), list[ir.Node]()
    if rank == 0:
        return value, nodes
    if rank > 1:
        flat = _constant(graph, f"{name}_flat", np.array([1], np.int64))
        nodes.append(ir.node("Reshape", inputs=[value, flat]))
    first = _constant(graph, f"{name}_first", np.array(0, np.int64))
    nodes.append(ir.node("Gather", inputs=[nodes[-1].outputs[0] if nodes else value, first]))
    return nodes[-1].outputs[0], nodes


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.INT64
    graph.register_initializer(value)
    return value

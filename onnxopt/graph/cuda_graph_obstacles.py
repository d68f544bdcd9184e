"""Which nodes keep a model from running as one CUDA graph in ONNX Runtime's CUDA EP.

A CUDA graph replays fixed launches over fixed addresses: no node may decide on the host what runs next, hand data
to the CPU and back in the middle, or give an output whose size depends on values. Shapes may be computed on the host:
one graph is captured a shape.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.placement import CONTROL_FLOW, SIZED_BY_VALUES, WITHOUT_KERNEL, Copy, Dtypes, has_no_kernel, place
from onnxopt.graph.shapes.infer import infer


def blocking_nodes(model: ir.Model) -> list[tuple[str, str]]:
    """(name, reason) of every node that prevents a CUDA graph, each node once; empty where the model qualifies.

    Nodes must be in topological order. The model is not changed.
    """
    dtype = infer(model).dtype
    found: dict[ir.Node, str] = {}
    for node in model.graph.all_nodes():
        if reason := _reason(node, dtype):
            found[node] = reason
    for copy in place(model.graph, dtype).copies:
        found.setdefault(copy.node, _copied(copy))
    return [(node.name or node.op_type, reason) for node, reason in found.items()]


def host_nodes(model: ir.Model) -> list[tuple[str, str]]:
    """(name, reason) of every node that runs on the CPU, for whatever reason; those of shapes block nothing."""
    dtype = infer(model).dtype
    placed = place(model.graph, dtype)
    return [
        (node.name or node.op_type, _reason(node, dtype) or f"{node.op_type} computes a shape")
        for node in model.graph
        if node in placed.host
    ]


def _reason(node: ir.Node, dtype: Dtypes) -> str:
    if node.domain == "ai.onnx.ml":
        return f"ai.onnx.ml has no CUDA kernels: the data of {node.op_type} goes through the CPU"
    if node.domain not in ("", "ai.onnx"):
        return ""
    if node.op_type in CONTROL_FLOW:
        return f"{node.op_type} decides on the host what runs next"
    if node.op_type in SIZED_BY_VALUES:
        return f"the size of what {node.op_type} gives depends on values, which the host has to wait for"
    if node.op_type in WITHOUT_KERNEL:
        return f"{node.op_type} has no CUDA kernel: its data goes through the CPU"
    if has_no_kernel(node, dtype):
        return "strings stay on the CPU"
    return ""


def _copied(copy: Copy) -> str:
    name, producer = copy.value.name, copy.value.producer()
    if copy.to_device:
        return f"{copy.node.op_type} reads {name} on the device, and it is computed on the host"
    if producer is None:
        return f"{copy.node.op_type} reads the input {name} on the host, where a replayed graph would not see it change"
    return f"{copy.node.op_type} reads {name} on the host, and {producer.op_type} computes it on the device"

"""Which nodes keep a model from running as one CUDA graph in ONNX Runtime's CUDA EP.

A CUDA graph replays fixed launches over fixed addresses: no node may decide on the host what runs next, pass data
through the CPU, or have an output whose size depends on values. Shapes may be computed on the host, because one graph
is captured for each shape.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.placement import provider_kernels
from onnxopt.graph.placement.place import (
    CONTROL_FLOW,
    SIZED_BY_VALUES,
    WITHOUT_KERNEL,
    Copy,
    folded_by_ort,
    has_no_kernel,
    place,
)
from onnxopt.graph.placement.provider_kernels import Dtypes
from onnxopt.graph.shapes.infer import infer


def blocking_nodes(model: ir.Model) -> list[tuple[str, str]]:
    """(name, reason) of every node that prevents a CUDA graph, each node once; empty where a graph can be captured.

    Nodes must be in topological order. The model is not changed.
    """
    dtype, folded = infer(model).dtype, folded_by_ort(model.graph)
    reasons: dict[ir.Node, str] = {}
    for node in model.graph.all_nodes():
        if node not in folded and (reason := _reason(node, dtype)):
            reasons[node] = reason
    for copy in place(model.graph, dtype, folded=folded).copies:
        reasons.setdefault(copy.node, _copied(copy))
    return [(node.name or node.op_type, reason) for node, reason in reasons.items()]


def host_nodes(model: ir.Model) -> list[tuple[str, str]]:
    """(name, reason) of every node that runs on the CPU. Those that compute shapes prevent no CUDA graph."""
    dtype = infer(model).dtype
    placed = place(model.graph, dtype, folded=folded_by_ort(model.graph))
    return [
        (node.name or node.op_type, _reason(node, dtype) or f"{node.op_type} computes a shape")
        for node in model.graph
        if node in placed.host
    ]


def computes_shapes(model: ir.Model) -> bool:
    """Whether nodes that have kernels of the CUDA EP run on the host, because they compute shapes from shapes.

    Under `prefer_nhwc`, ORT 1.31 runs them on the device, copies what they read and give, and captures no CUDA graph.
    """
    dtype = infer(model).dtype
    placed = place(model.graph, dtype, folded=folded_by_ort(model.graph))
    return any(not has_no_kernel(node, dtype) for node in placed.host)


def _reason(node: ir.Node, dtype: Dtypes) -> str:
    if node.domain == "ai.onnx.ml":
        return f"{node.op_type} of ai.onnx.ml has no CUDA kernel: its data goes through the CPU"
    if node.domain == "com.microsoft" and has_no_kernel(node, dtype):
        return f"{node.op_type} has no CUDA kernel: its data goes through the CPU"
    if node.domain not in ("", "ai.onnx"):
        return ""
    if node.op_type in CONTROL_FLOW:
        return f"{node.op_type} decides on the host what runs next"
    if node.op_type in SIZED_BY_VALUES:
        return f"the size of {node.op_type}'s output depends on values, for which the host waits"
    if node.op_type in WITHOUT_KERNEL:
        return f"{node.op_type} has no CUDA kernel: its data goes through the CPU"
    if missing := provider_kernels.missing(node, dtype):
        return f"{node.op_type} {missing} has no CUDA kernel: its data goes through the CPU"
    if has_no_kernel(node, dtype):
        return f"{node.op_type} reads or writes strings, which stay on the CPU"
    return ""


def _copied(copy: Copy) -> str:
    name, producer = copy.value.name, copy.value.producer()
    if copy.to_device:
        return f"{copy.node.op_type} runs on the device and reads `{name}`, which is computed on the host"
    if producer is None:
        return f"{copy.node.op_type} reads the input `{name}` on the host; a replayed graph would not see it change"
    return f"{copy.node.op_type} reads `{name}` on the host, but {producer.op_type} computes it on the device"

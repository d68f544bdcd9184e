"""Which nodes keep a model from running as one CUDA graph in ONNX Runtime's CUDA EP.

A CUDA graph replays fixed launches over fixed addresses: no node may decide on the host what runs next, hand data to
the CPU in the middle, or give an output whose size depends on values.
"""

from __future__ import annotations

import onnx_ir as ir

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_SIZED_BY_VALUES = frozenset({"Compress", "NonZero", "NonMaxSuppression", "Unique", "StringSplit"})
_ON_THE_HOST = frozenset(
    {
        "Bernoulli",
        "DynamicQuantizeLinear",
        "Multinomial",
        "RegexFullMatch",
        "StringConcat",
        "StringNormalizer",
        "TfIdfVectorizer",
    }
)


def blocking_nodes(model: ir.Model) -> list[tuple[str, str]]:
    """(name, reason) of every node that prevents a CUDA graph; empty where the model qualifies."""
    return [(node.name or node.op_type, reason) for node in model.graph.all_nodes() if (reason := _reason(node))]


def _reason(node: ir.Node) -> str:
    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain} has no CUDA kernels" if node.domain == "ai.onnx.ml" else ""
    if node.op_type in _CONTROL_FLOW:
        return f"{node.op_type} decides on the host what runs next"
    if node.op_type in _SIZED_BY_VALUES:
        return f"the size of what {node.op_type} gives depends on values, which the host has to wait for"
    if node.op_type in _ON_THE_HOST:
        return f"{node.op_type} has no CUDA kernel: its data goes through the CPU"
    if any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)):
        return "strings stay on the CPU"
    return ""

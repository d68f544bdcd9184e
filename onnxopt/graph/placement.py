"""Where ONNX Runtime's CUDA execution provider runs each node of a graph: on the device, or on the host.

What it keeps on the host follows `GetCpuPreferredNodes` of ORT (core/framework/fallback_cpu_capability.cc): from the
results of Shape, Size and operators without a CUDA kernel on, a node runs on the CPU where all it reads lies there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

# Inputs that kernels of the CUDA provider read on the host: op type -> their positions.
HOST_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3), "Resize": (1, 2, 3), "Upsample": (1,), "TopK": (1,), "Split": (1,), "Unsqueeze": (1,),
    "Squeeze": (1,), "OneHot": (1,), "Loop": (0, 1), "If": (0,), "CumSum": (1,), "Trilu": (1,),
    "CenterCropPad": (1,), "AffineGrid": (1,), "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,),
    "GroupQueryAttention": (6,),
}  # fmt: skip
# ONNX operators for which ORT 1.31's CUDA provider has no kernel, and which are no functions that ORT would decompose.
WITHOUT_KERNEL = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Bernoulli", "BitShift", "BitwiseAnd", "BitwiseNot",
     "BitwiseOr", "BitwiseXor", "BlackmanWindow", "Col2Im", "ConvInteger", "Cosh", "DFT", "Det",
     "DynamicQuantizeLinear", "GlobalLpPool", "HammingWindow", "HannWindow", "Hardmax", "ImageDecoder",
     "LpNormalization", "LpPool", "MaxRoiPool", "MaxUnpool", "Mean", "MelWeightMatrix", "Multinomial", "QLinearConv",
     "QLinearMatMul", "RegexFullMatch", "STFT", "Sinh", "SplitToSequence", "StringConcat", "StringNormalizer",
     "StringSplit", "Tan", "TfIdfVectorizer", "Unique"}
)  # fmt: skip
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})  # what runs next is decided on the host
SIZED_BY_VALUES = frozenset({"Compress", "NonZero", "NonMaxSuppression", "Unique", "StringSplit"})  # it waits for them
_GIVES_HOST_TENSORS = frozenset({"Shape", "Size"})  # device kernels that write their result on the host
_SMALL = 100  # elements; smaller constants may lie on the host
_NEVER_ON_HOST = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

Dtypes = Callable[[ir.Value], ir.DataType | None]


def declared_dtype(value: ir.Value) -> ir.DataType | None:
    """The dtype that a value says it has."""
    return value.dtype


@dataclasses.dataclass(frozen=True)
class Copy:
    """A tensor that one node writes where another does not read it, so that ORT copies it in between.

    to_device: which way. value: may be an input of the model, which is read on the host then.
    """

    node: ir.Node
    value: ir.Value
    to_device: bool


@dataclasses.dataclass(frozen=True)
class Placement:
    """host: nodes that run on the CPU. host_values: results that lie there. copies: what crosses over."""

    host: frozenset[ir.Node]
    host_values: frozenset[ir.Value]
    copies: tuple[Copy, ...]


def place(graph: ir.Graph | ir.Function, dtype: Dtypes = declared_dtype, *, only_shapes: bool = False) -> Placement:
    """Where the nodes of a graph run, without those inside control flow. Nodes must be in topological order.

    dtype: of a value, which decides for strings and 16-bit floats. only_shapes: as if every operator had a kernel, so
    that what is on the host computes shapes.
    """
    host: set[ir.Node] = set()
    values: set[ir.Value] = set()
    copies: list[Copy] = []
    for node in graph:
        read_on_host = HOST_INPUTS.get(node.op_type, ()) if node.domain in ("", "ai.onnx", "com.microsoft") else ()
        if (not only_shapes and has_no_kernel(node, dtype)) or _prefers_host(node, values, read_on_host, dtype):
            host.add(node)
            values.update(node.outputs)
        elif node.op_type in _GIVES_HOST_TENSORS and node.domain in ("", "ai.onnx"):
            values.update(node.outputs)
            continue
        for k, value in enumerate(node.inputs):
            if value is None or (value.const_value is not None and not value.is_graph_input()):
                continue
            wanted_on_host = node in host or k in read_on_host
            if wanted_on_host != (value in values):
                copies.append(Copy(node, value, to_device=not wanted_on_host))
    return Placement(frozenset(host), frozenset(values), tuple(copies))


def has_no_kernel(node: ir.Node, dtype: Dtypes) -> bool:
    """Whether the CUDA provider has no kernel for a node, as far as its operator and strings tell."""
    if node.domain == "ai.onnx.ml" or ir.DataType.STRING in (
        dtype(v) for v in (*node.inputs, *node.outputs) if v is not None
    ):
        return True
    return node.domain in ("", "ai.onnx") and node.op_type in WITHOUT_KERNEL


def _prefers_host(node: ir.Node, host_values: set[ir.Value], read_on_host: tuple[int, ...], dtype: Dtypes) -> bool:
    """ORT's rule: all it reads is on the host, or small and constant, or an input, and no kernel wants it there."""
    if node.domain not in ("", "ai.onnx") or not any(v in host_values for v in node.inputs):
        return False
    for k, value in enumerate(node.inputs):
        if value is None:
            continue
        if dtype(value) in _NEVER_ON_HOST:
            return False
        if value.is_graph_input() or (value.const_value is not None and value.const_value.size <= _SMALL):
            continue
        if value not in host_values or k in read_on_host:
            return False
    return True

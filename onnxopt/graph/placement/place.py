"""Where ONNX Runtime's CUDA execution provider runs each node of a graph: on the device, or on the host.

The rules are those of ORT's `GetCpuPreferredNodes` (core/framework/fallback_cpu_capability.cc): Shape, Size and
operators without a CUDA kernel have results on the host. A node whose operands are all on the host runs there too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxopt.graph.placement import provider_kernels
from onnxopt.graph.placement.provider_kernels import Dtypes

# Inputs that the CUDA provider's kernels read on the host: op type -> positions.
HOST_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3), "Resize": (1, 2, 3), "Upsample": (1,), "TopK": (1,), "Split": (1,), "Unsqueeze": (1,),
    "Squeeze": (1,), "OneHot": (1,), "Loop": (0, 1), "If": (0,), "CumSum": (1,), "Trilu": (1,),
    "CenterCropPad": (1,), "AffineGrid": (1,), "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,),
    "GroupQueryAttention": (6,),
}  # fmt: skip
# ONNX operators without a kernel in ORT 1.31's CUDA provider, beside those of provider_kernels.json: ONNX has no test
# case of them in every dtype, or defines them by operators that run on the CPU.
_WITHOUT_KERNEL = frozenset(
    {"Bernoulli", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BlackmanWindow", "Col2Im", "ConvInteger",
     "DynamicQuantizeLinear", "GlobalLpPool", "HammingWindow", "HannWindow", "ImageDecoder", "MaxRoiPool",
     "MelWeightMatrix", "Multinomial", "QLinearConv", "SplitToSequence", "TfIdfVectorizer", "Unique"}
)  # fmt: skip
WITHOUT_KERNEL = _WITHOUT_KERNEL | provider_kernels.without_kernel()
# Of com.microsoft: what ORT's optimizer makes of Q and DQ for its CPU provider.
CONTRIB_WITHOUT_KERNEL = frozenset(
    {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QEmbedLayerNormalization", "QGemm",
     "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul",
     "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere"}
)  # fmt: skip
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})  # the host decides what runs next
SIZED_BY_VALUES = frozenset(
    {"Compress", "NonZero", "NonMaxSuppression", "Unique", "StringSplit"}
)  # the host waits for these
_RESULT_ON_HOST = frozenset({"Shape", "Size"})  # kernels of the device whose result is on the host
_NEVER_FOLDED = frozenset(
    {"Bernoulli", "DequantizeLinear", "DynamicQuantizeLinear", "Multinomial", "QuantizeLinear", "RandomNormal",
     "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)  # fmt: skip
_SMALL = 100  # elements; smaller constants may lie on the host
_NEVER_ON_HOST = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def declared_dtype(value: ir.Value) -> ir.DataType | None:
    """The dtype that a value declares."""
    return value.dtype


def folded_by_ort(graph: ir.Graph | ir.Function) -> frozenset[ir.Node]:
    """The nodes that ORT evaluates when it creates a session: all their inputs are constants.

    Not those that draw random numbers, hold graphs, or quantize. Nodes must be in topological order.
    """
    folded: set[ir.Node] = set()
    for node in graph:
        holds_graphs = any(
            a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()
        )
        if holds_graphs or node.domain not in ("", "ai.onnx") or node.op_type in _NEVER_FOLDED:
            continue
        inputs = [value for value in node.inputs if value is not None]
        if all(v.producer() in folded or (v.const_value is not None and not v.is_graph_input()) for v in inputs):
            folded.add(node)
    return frozenset(folded)


@dataclasses.dataclass(frozen=True)
class Copy:
    """A tensor that ORT copies between host and device.

    node: the reader. value: what it reads, computed or fed on the other side. to_device: whether the node reads it on
    the device.
    """

    node: ir.Node
    value: ir.Value
    to_device: bool


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where nodes run and values lie.

    host: nodes that run on the CPU. host_values: results in its memory. copies: values that are read on the other side.
    """

    host: frozenset[ir.Node]
    host_values: frozenset[ir.Value]
    copies: tuple[Copy, ...]


def place(
    graph: ir.Graph | ir.Function,
    dtype: Dtypes = declared_dtype,
    *,
    only_shapes: bool = False,
    folded: Collection[ir.Node] = (),
) -> Placement:
    """Where the nodes of a graph run, except those inside control flow. Nodes must be in topological order.

    dtype: the dtype of a value; strings stay on the host, 16-bit floats never do. only_shapes: as if every operator had
    a CUDA kernel, so that only nodes that compute shapes are on the host. folded: nodes that ORT evaluates when it
    creates the session; they run nowhere, and their results are constants.
    """
    constants = {value for node in folded for value in node.outputs}
    host: set[ir.Node] = set()
    values: set[ir.Value] = set()
    copies: list[Copy] = []
    for node in graph:
        if node in folded:
            continue
        read_on_host = HOST_INPUTS.get(node.op_type, ()) if node.domain in ("", "ai.onnx", "com.microsoft") else ()
        if (not only_shapes and has_no_kernel(node, dtype)) or _prefers_host(node, values, read_on_host, dtype):
            host.add(node)
            values.update(node.outputs)
        elif node.op_type in _RESULT_ON_HOST and node.domain in ("", "ai.onnx"):
            values.update(node.outputs)
            continue
        for k, value in enumerate(node.inputs):
            if value is None or value in constants or (value.const_value is not None and not value.is_graph_input()):
                continue
            wanted_on_host = node in host or k in read_on_host
            if wanted_on_host != (value in values):
                copies.append(Copy(node, value, to_device=not wanted_on_host))
    return Placement(frozenset(host), frozenset(values), tuple(copies))


def has_no_kernel(node: ir.Node, dtype: Dtypes) -> bool:
    """Whether the CUDA provider has no kernel for a node: of its operator, version and dtypes, or of strings."""
    if node.domain == "ai.onnx.ml" or ir.DataType.STRING in (
        dtype(v) for v in (*node.inputs, *node.outputs) if v is not None
    ):
        return True
    if node.domain == "com.microsoft":
        return node.op_type in CONTRIB_WITHOUT_KERNEL
    if node.domain not in ("", "ai.onnx"):
        return False
    return node.op_type in WITHOUT_KERNEL or provider_kernels.missing(node, dtype) is not None


def _prefers_host(node: ir.Node, host_values: set[ir.Value], read_on_host: tuple[int, ...], dtype: Dtypes) -> bool:
    """Whether ORT moves a node with a kernel to the host: one operand is there, and every other one may be.

    Values on the host, model inputs and small constants may be. A node stays on the device where its kernel reads the
    operand on the host anyway.
    """
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

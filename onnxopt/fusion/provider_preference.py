"""Where an execution provider is faster without a fused kernel, because the provider fuses the same nodes itself."""

from __future__ import annotations

from onnxopt.fusion import integer_kernels
from onnxopt.fusion.region import Region
from onnxopt.graph.layout import is_channels_last

# ORT's CPU provider runs these operators in a blocked layout (NCHWc) and folds neighbouring Adds and activations into
# them. A custom op in between would force a layout change on both sides.
_BLOCKED_ON_CPU = frozenset(
    {"Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
     "BatchNormalization"}
)  # fmt: skip


def is_beside_blocked_layout(region: Region) -> bool:
    """Whether a region reads or feeds an operator that ORT's CPU provider runs in a blocked layout.

    The same holds for values of the layout pass, whose Transposes ORT only cancels where no custom op is in between.
    """
    if any(map(is_channels_last, (*region.inputs, *(v for node in region.nodes for v in node.outputs)))):
        return True
    producers = [p for v in region.inputs if (p := v.producer()) is not None]
    readers = [u for v in region.outputs for u in v.consumers()]
    turned = [v for p in producers if p.op_type == "Transpose" for v in p.inputs]
    turned += [v for u in readers if u.op_type == "Transpose" for v in u.outputs]
    return any(n.op_type in _BLOCKED_ON_CPU for n in (*producers, *readers)) or any(map(is_channels_last, turned))


def is_quantized(region: Region) -> bool:
    """Whether ONNX Runtime's CPU provider runs nodes of a region faster: Q, DQ, and what integer kernels replace."""
    return any(integer_kernels.is_coding(n) or integer_kernels.replaced_with(n) is not None for n in region.nodes)

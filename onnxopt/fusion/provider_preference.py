"""Where an execution provider is faster without a fused kernel, because the provider fuses the same nodes itself."""

from __future__ import annotations

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
    producers = (v.producer() for v in region.inputs)
    if any(p is not None and p.op_type in _BLOCKED_ON_CPU for p in producers):
        return True
    return any(u.op_type in _BLOCKED_ON_CPU for v in region.outputs for u in v.consumers())

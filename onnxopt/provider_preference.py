"""Where an execution provider does better without our kernel, because it fuses the same nodes itself."""

from __future__ import annotations

from onnxopt.regions import Kind, Region

# ORT's CPU provider runs these in a blocked layout (NCHWc) and folds neighbouring sums and activations into them; a
# custom op in between would force a layout change on both sides.
_BLOCKED_ON_CPU = frozenset(
    {"Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
     "BatchNormalization"}
)  # fmt: skip


def kernel_wins_on_cpu(region: Region) -> bool:
    """Whether the library's CPU kernel should run a region on a machine without GPU (else ORT inlines the function)."""
    if region.kind is Kind.GEMM:
        return False  # ORT's own products are faster than the library's, which are for CPU sessions beside a GPU
    producers = (v.producer() for v in region.inputs)
    if any(p is not None and p.op_type in _BLOCKED_ON_CPU for p in producers):
        return False
    return not any(u.op_type in _BLOCKED_ON_CPU for v in region.outputs for u in v.consumers())

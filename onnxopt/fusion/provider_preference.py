"""Where an execution provider does better without our kernel, because it fuses the same nodes itself."""

from __future__ import annotations

from onnxopt.fusion import eligibility
from onnxopt.fusion.operands import constant
from onnxopt.fusion.regions import Kind, Region
from onnxopt.kinds.scan import find
from onnxopt.program import row_operators

# ORT's CPU provider runs these in a blocked layout (NCHWc) and folds neighbouring sums and activations into them; a
# custom op in between would force a layout change on both sides.
_BLOCKED_ON_CPU = frozenset(
    {"Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
     "BatchNormalization"}
)  # fmt: skip
# ORT's CPU provider recognises norms that are spelled out by their square root, and has vectorized kernels for them.
_SPELLS_A_NORM = frozenset({"Sqrt", "Rsqrt"})
_FEWEST_ROWWISE = 3
# The CPU kernel gathers what these arrange element by element, ORT moves blocks: measured 0.5 to 0.6 times as fast
# for a Transpose with two operators, 0.4 for a Concat with two, but 1.2 for a rotary embedding with its four.
_GATHERED = frozenset({"Transpose", "DepthToSpace", "SpaceToDepth", "Tile", "Gather"})
_JOINED = frozenset({"Concat", "Pad"})
_FEWEST_BESIDE_JOINED = 4


def kernel_wins_on_cpu(region: Region) -> bool:
    """Whether the library's CPU kernel should run a region on a machine without GPU (else ORT inlines the function)."""
    if region.kind in (Kind.GEMM, Kind.ATTENTION):
        return False  # ORT's own are faster than the library's, which are for CPU sessions beside a GPU
    producers = (v.producer() for v in region.inputs)
    if any(p is not None and p.op_type in _BLOCKED_ON_CPU for p in producers):
        return False
    if any(u.op_type in _BLOCKED_ON_CPU for v in region.outputs for u in v.consumers()):
        return False
    ops = [n.op_type for n in region.nodes]
    if region.kind is Kind.SCAN:
        return len(ops) >= _FEWEST_ROWWISE and _sums_along_memory(region)
    if region.kind is Kind.ROWWISE:
        fused_by_ort = any(row_operators.keeps_shape("", op) or op in _SPELLS_A_NORM for op in ops)
        return len(ops) >= _FEWEST_ROWWISE and not fused_by_ort
    if _GATHERED & set(ops):
        return False
    return not _JOINED & set(ops) or sum(map(eligibility.is_elementwise, region.nodes)) >= _FEWEST_BESIDE_JOINED


def _sums_along_memory(region: Region) -> bool:
    """Whether a CumSum goes along the last axis: ORT's is faster across memory, and half as fast along it."""
    axis = next(constant(n.inputs[1]) for n in region.nodes if find.is_scan(n))
    rank = max((len(v.shape) for v in (*region.inputs, *region.outputs) if v.shape is not None), default=0)
    return axis is not None and int(axis.numpy().item()) in (-1, rank - 1)

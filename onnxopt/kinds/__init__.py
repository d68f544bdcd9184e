"""The kinds of kernels: one folder and one line below for each. May import program to fusion."""

from __future__ import annotations

from onnxopt.fusion.region import Kind
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.kinds.pointwise.kind import POINTWISE
from onnxopt.kinds.rowwise.kind import ROWWISE
from onnxopt.kinds.scan.kind import SCAN

# In the order of the search; later kinds leave alone the nodes that an earlier kind takes. Attention takes operators
# that no other kind takes, and the nodes that compute their lengths. Rowwise comes before GEMM, because a bias or a
# residual costs less in a norm's kernel than in cuBLASLt's epilogue (benchmarks/notes.md). Rowwise comes before scan,
# because the work between a reduction and a scan costs nothing in the reduction's kernel. Pointwise takes the rest.
KINDS: tuple[Kind, ...] = (
    ATTENTION,
    ROWWISE,
    SCAN,
    GEMM,
    POINTWISE,
)

__all__ = ["KINDS"]

"""The kinds of kernels: one folder and one line below for each. May import program to fusion."""

from __future__ import annotations

from onnxopt.fusion.region import Kind
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.kinds.pointwise.kind import POINTWISE
from onnxopt.kinds.rowwise.kind import ROWWISE
from onnxopt.kinds.scan.kind import SCAN

# In the order in which they are searched for: what a kind takes, the later kinds leave alone. Attention takes operators
# that no other kind does, with the nodes that compute their lengths. Rows come before GEMMs: a bias or a residual costs
# a norm's kernel less than cuBLASLt's epilogue (benchmarks/notes.md), and the work between a reduction and a scan costs
# nothing behind the reduction. Pointwise regions take the remaining nodes.
KINDS: tuple[Kind, ...] = (
    ATTENTION,
    ROWWISE,
    SCAN,
    GEMM,
    POINTWISE,
)

__all__ = ["KINDS"]

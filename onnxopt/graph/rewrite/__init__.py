"""Pattern rules that replace subgraphs by operators with better kernels. May import: shapes, passes, read, refusal.

masks/ is imported by the rules here; it imports shapes alone.
"""

from __future__ import annotations

from onnxopt.graph.rewrite.families import FAMILIES
from onnxopt.graph.rewrite.flow import Rewritten, rewrite, to_portable

__all__ = ["FAMILIES", "Rewritten", "rewrite", "to_portable"]

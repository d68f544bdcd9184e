"""Pattern rules that replace subgraphs by operators with better kernels. Part of graph: may import program."""

from __future__ import annotations

from onnxopt.graph.rewrite.rewrite import FAMILIES, Rewritten, rewrite, to_portable

__all__ = ["FAMILIES", "Rewritten", "rewrite", "to_portable"]

"""Rewrite: pattern rules that replace subgraphs by operators a runtime has better kernels for."""

from __future__ import annotations

from onnxopt.graph.rewrite.rewrite import FAMILIES, Rewritten, rewrite, to_portable

__all__ = ["FAMILIES", "Rewritten", "rewrite", "to_portable"]

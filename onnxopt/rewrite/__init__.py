"""Rewrite: pattern rules that replace subgraphs by operators a runtime has better kernels for."""

from __future__ import annotations

from onnxopt.rewrite.steps import FAMILIES, Rewritten, rewrite, to_portable

__all__ = ["FAMILIES", "Rewritten", "rewrite", "to_portable"]

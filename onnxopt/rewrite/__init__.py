"""Rewrite: pattern rules that replace subgraphs by operators a runtime has better kernels for."""

from __future__ import annotations

from onnxopt.rewrite.steps import FAMILIES, Rewritten, rewrite, to_portable
from onnxopt.rewrite.target import Target

__all__ = ["FAMILIES", "Rewritten", "Target", "rewrite", "to_portable"]

"""Rules that replace subgraphs by operators with better kernels. May import program, graph/shapes and graph/passes.

table.py says which rules run, in which order, and of which family each is. A file of rules ends with its rows.
"""

from __future__ import annotations

from onnxopt.graph.rewrite.forms import Rewritten, prepare_float32, rewrite, to_portable
from onnxopt.graph.rewrite.table import FAMILIES

__all__ = ["FAMILIES", "Rewritten", "prepare_float32", "rewrite", "to_portable"]

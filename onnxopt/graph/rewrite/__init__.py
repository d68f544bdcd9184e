"""Rules that replace subgraphs by operators with better kernels. May import program, graph/shapes and graph/passes.

flow.py says when rules run, families.py which rules belong together, and a file of rules ends with its rows.
"""

from __future__ import annotations

from onnxopt.graph.rewrite.families import FAMILIES
from onnxopt.graph.rewrite.flow import Rewritten, rewrite
from onnxopt.graph.rewrite.forms import prepare_float32, to_portable

__all__ = ["FAMILIES", "Rewritten", "prepare_float32", "rewrite", "to_portable"]

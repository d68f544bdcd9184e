"""Channels last: which values of a graph lie as [N, H, W, C] or [N, D, H, W, C], and the graph that computes them so.

`align`, `widen_sequences`, `join_planes`, `part_biases` and `turn_tokens` prepare the graph, `assign` is the pass,
`join_tokens` and `codes_apart` follow.
forms.py says how each operator looks in channels last, network.py weighs the bytes of Transposes, min_cut.py finds a
least cut, write.py changes the graph; gated_weights.py then moves gates from maps to weights. May import program,
graph/shapes and graph/passes.
"""

from __future__ import annotations

from onnxopt.graph.layout import codes_apart, gated_weights
from onnxopt.graph.layout.aligned_channels import align
from onnxopt.graph.layout.assign import assign
from onnxopt.graph.layout.mark import is_channels_last
from onnxopt.graph.layout.one_dim import widen_sequences
from onnxopt.graph.layout.planes import join_planes
from onnxopt.graph.layout.tokens import join_tokens, turn_tokens
from onnxopt.graph.layout.transposed_volumes import part_biases

__all__ = [
    "align", "assign", "codes_apart", "gated_weights", "is_channels_last", "join_planes", "join_tokens", "part_biases",
    "turn_tokens", "widen_sequences",
]  # fmt: skip

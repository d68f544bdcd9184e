"""Channels last, and gates on weights, as rows of rules. graph/layout/ has the passes."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.layout import (
    align,
    assign,
    codes_apart,
    gated_weights,
    join_planes,
    join_tokens,
    part_biases,
    turn_tokens,
    widen_sequences,
)
from onnxopt.graph.rewrite.rule_sets import Pass, Scope


def _assign(model: ir.Model, scope: Scope) -> int:
    return assign(model, scope.inferred, codes=scope.gpu and _has_sizes(model, scope))


def _has_sizes(model: ir.Model, scope: Scope) -> bool:
    """Whether the sizes that most runs have are known, for which kernels of codes are compiled."""
    dims = [dim for value in model.graph.inputs for dim in (value.shape if value.shape is not None else (None,))]
    return all(scope.expected.of(dim) is not None for dim in dims)


def _scale(model: ir.Model, scope: Scope) -> int:
    return gated_weights.scale(model.graph, gated_weights.candidates(model.graph), scope.inferred)


ALIGNED = (Pass(lambda model, scope: align(model.graph, scope.inferred)),)
TOKENS = (
    Pass(lambda model, _: widen_sequences(model), counted=False),
    Pass(lambda model, scope: join_planes(model.graph) if scope.gpu else 0, counted=False),
    Pass(lambda model, scope: part_biases(model.graph) if scope.gpu else 0, counted=False),
    Pass(lambda model, _: turn_tokens(model.graph), counted=False),
)
RULES = (
    Pass(_assign),
    Pass(lambda model, _: join_tokens(model.graph), counted=False),
    Pass(lambda model, _: codes_apart.part(model.graph), counted=False),
)
GATES = (Pass(_scale),)

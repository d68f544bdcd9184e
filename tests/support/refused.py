"""Why a rewrite rule leaves a node as it is."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchingTracer, RewriteRule

from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.graphs import value


def reason(model: ir.Model, output: str, rule: RewriteRule) -> str:
    """The reason of the rule's check for the node that computes `output`, once shapes are inferred."""
    InferShapesPass()(model)
    node, tracer = value(model, output).producer(), MatchingTracer()
    assert node is not None
    assert not rule.match(model, model.graph, node, tracer=tracer)
    return str(tracer.best_matches_map[rule][0].match_result.reason)

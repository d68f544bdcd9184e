"""What the kinds share while they search a graph: lowered programs are cached, but not without bound."""

from __future__ import annotations

import pytest

from onnxopt.fusion import context as contexts
from onnxopt.fusion.context import Context
from onnxopt.graph.shapes import shapes as shape_inference
from tests.support.graphs import graph


def _context() -> Context:
    model = graph("float[N, 8] x", "float[N, 8] y", "a = Tanh(x)  b = Exp(a)  y = Neg(b)")
    return Context(model.graph, model.opset_imports, shape_inference.infer(model), set())


def test_recent_results_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_MAX_LOWERED", 2)
    context, lowered = _context(), []

    def lower(nodes, *_):
        lowered.append(nodes[0].name)
        return object()

    first, second, third = context.order
    for node in (first, second, first, third, first, second):  # `third` drops `second`, which was used longest ago
        context.lowered(lower, [node], [], [])
    assert lowered == ["a", "b", "y", "b"]


def test_a_cached_error_is_raised_again_without_growing() -> None:
    context = _context()

    def lower(*_):
        raise ValueError("no program")

    depths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="no program") as caught:
            context.lowered(lower, list(context.order), [], [])
        depths.append(len(caught.traceback))
    assert depths[1] == depths[2] <= depths[0]

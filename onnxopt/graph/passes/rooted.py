"""Rewrite rules that are tried only on nodes of one operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule


class Rooted:
    """A rule that is tried only on nodes of the operator that computes its pattern's result.

    onnxscript's matcher finds out the same, but takes long for it in large graphs.
    """

    def __init__(self, op_type: str, rule: RewriteRule) -> None:
        self.op_type, self._rule = op_type, rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **options: Any) -> Any:
        return None if node.op_type != self.op_type else self._rule.try_rewrite(model, graph, node, **options)


class RootedLater(Rooted):
    """A rule that is made when the first node of the operator is met: tracing a pattern takes longer than most graphs.

    Its class has neither setup nor cleanup, and it removes what it matches.
    """

    remove_nodes, graph_pre_visitor, graph_post_visitor = True, None, None

    def __init__(self, op_type: str, make: Callable[[], RewriteRule]) -> None:
        self.op_type, self._make = op_type, make

    @functools.cached_property
    def _rule(self) -> RewriteRule:  # type: ignore[override]
        return self._make()

"""Rewrite rules as rows: which rules are tried together, or run as one pass, and what they may use besides a match."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.expected import ExpectedSizes
from onnxopt.graph.shapes.infer import Knowledge


@dataclasses.dataclass(frozen=True)
class Scope:
    """What rules may use besides the values they match.

    graph: the main graph, off whose inputs dims can be read. inferred: the shapes and contents of its values. joiner:
    joins weights; there where TABLE runs. usual: sizes that symbols of the inputs have in most runs. gpu: whether
    kernels for GPUs are made of the result.
    """

    graph: ir.Graph
    inferred: Knowledge
    joiner: Joiner | None = None
    usual: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gpu: bool = False

    @functools.cached_property
    def index_values(self) -> IndexValues:
        """What the graph's integer and bool tensors hold."""
        return IndexValues(self.graph, self.inferred)

    @functools.cached_property
    def expected(self) -> ExpectedSizes:
        """Sizes of symbolic dims to choose by."""
        return ExpectedSizes(self.inferred, self.usual)


@dataclasses.dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules that are tried together, node by node, in one pass over the graph.

    rules: makes them anew for each pass, because onnxscript's matchers keep state. counted: False for rules that only
    prepare the graph for others; they do not count as applications of their family. packed: whether the rules take
    products of packed codes too (packed_weights.py).
    """

    rules: Callable[[Scope], Sequence[RewriteRule | Rooted]]
    counted: bool = True
    packed: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Pass:
    """What no pattern states: a function over the whole graph, whose shapes were inferred.

    run: changes the model in place, and returns how often. counted: as of `RuleSet`.
    """

    run: Callable[[ir.Model, Scope], int]
    counted: bool = True


Row = RuleSet | Pass

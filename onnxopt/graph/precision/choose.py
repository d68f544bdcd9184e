"""Chooses the values of a float32 graph that are stored in 16 bits.

Precision belongs to values: kernels compute in float32 whatever is stored. A node is *narrow* where all its float
tensors may be stored in 16 bits: where their measured ranges, with some headroom, fit the dtype, and rounding costs
them no more than it costs normal numbers. Every other node stays float32, and convert.py puts Casts where it reads and
stores. So any value between two narrow nodes may be stored, wherever fusion draws the border of a kernel, and without
the library; between nodes of one kernel nothing is rounded. Elementwise nodes are not put between Casts of their own
where all their values fit: in a kernel both compute the same, and without the library each Cast would be a kernel.

Nodes stay float32 whatever the ranges are
- where they reduce rows to statistics, with the nodes that compute with statistics alone, and those that join them to
  the row again: norms and decomposed Softmax, whose squares and sums overflow and whose epsilons vanish;
- where their operator's definition does not take the dtype, or it computes positions, sizes or an order (Range, CumSum,
  TopK, Resize and everything that has no row here), or runs graphs of its own (If, Loop, Scan), whose nodes are chosen
  as others are;
- where they compute a state of a loop from the state before, or decide how often it runs (carried.py);
- where their result is steep (Sin, Floor), together with the elementwise nodes in front of them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import bodies, operators, ranges
from onnxopt.graph.precision.carried import keep_carried, keep_deciding
from onnxopt.graph.precision.constants import Constants
from onnxopt.graph.precision.fact_rules import RULES
from onnxopt.graph.precision.facts import Facts
from onnxopt.graph.precision.fit import Fit
from onnxopt.graph.precision.integer_masks import IntegerMasks
from onnxopt.graph.precision.masks import Hiding
from onnxopt.graph.precision.operators import Sort
from onnxopt.graph.precision.ranges import Range
from onnxopt.graph.precision.statistics import keep_factors_of_norms, keep_statistics
from onnxopt.graph.precision.upstream import Upstream
from onnxopt.graph.precision.values import is_float, is_unknown, readers_of

_RESTORED = "Outputs are too far from float32 otherwise"


@dataclasses.dataclass(frozen=True)
class Kept:
    """A node that stays float32, and why."""

    node: str
    op_type: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """narrow: the nodes (bodies.py) whose float tensors become `dtype`. kept: the others that compute floats.

    hiding: whether a value ends in Softmax alone, so that elements below masks.LOWEST may be set to it; it knows every
    value of the graph. measured: the ranges that the choice was made from.
    """

    dtype: ir.DataType
    narrow: frozenset[ir.Node]
    kept: tuple[Kept, ...]
    hiding: Hiding
    measured: Mapping[str, Range]

    def reaches(self, value: ir.Value) -> float:
        """How low a value gets; inputs may get as low as they like."""
        if value.is_graph_input():
            return -float("inf")
        return self.measured.get(value.name or "", ranges.NOTHING).lowest


def choose(
    model: ir.Model,
    measured: Mapping[str, Range],
    dtype: ir.DataType,
    *,
    keep_float: str | None = None,
    restored: Collection[str] = (),
    constants: Constants | None = None,
) -> Choice:
    """Choose for a normalized model, which stays as it is.

    measured: the ranges of inputs and of what nodes compute, by name; those of branches that no run took are missing.
    keep_float: a regular expression; nodes stay float32 in whose name it is found. restored: names of nodes that stay
    float32. constants: of the model, where they serve several choices.
    """
    choosing, names = _Choosing(model, measured, dtype, constants or Constants(dtype)), frozenset(restored)
    pattern = None if keep_float is None else re.compile(keep_float)
    for node in choosing.nodes:
        if pattern is not None and pattern.search(node.name or ""):
            choosing.keep(node, "--keep-float names it")
        elif reason := choosing.always_float(node):
            choosing.keep(node, reason)
        elif node.name in names:
            choosing.keep(node, _RESTORED)
    keep_carried(model, choosing.keep)
    keep_deciding(model, choosing.keep)
    keep_statistics(choosing.nodes, choosing.reasons, choosing.keep, model.graph)
    choosing.upstream.keep(choosing.nodes)
    choosing.keep_unbounded()
    choosing.keep_first()
    choosing.keep_unfit()
    keep_factors_of_norms(choosing.nodes, choosing.reasons, choosing.keep)
    choosing.keep_between()
    narrow = frozenset(n for n in choosing.nodes if n not in choosing.reasons)
    for value in (v for node in choosing.nodes for v in node.inputs if v is not None):
        choosing.hiding.ends_in_softmax(value)  # while every reader is the original one
    rows = tuple(
        Kept(node.name or "", node.op_type, reason)
        for node, reason in choosing.reasons.items()
        if any(is_float(v) for v in node.outputs)
    )
    return Choice(dtype, narrow, rows, choosing.hiding, measured)


class _Choosing:
    """One graph while it is decided which nodes stay float32. reasons: of these, in the order of the decisions."""

    def __init__(
        self, model: ir.Model, measured: Mapping[str, Range], dtype: ir.DataType, constants: Constants
    ) -> None:
        self.nodes = [n for n in bodies.nodes_of(model.graph) if any(map(is_float, (*n.inputs, *n.outputs)))]
        self.reasons: dict[ir.Node, str] = {}
        self.hiding = Hiding()
        self._graph = model.graph
        self._opsets, self._dtype = model.opset_imports, dtype
        self._fit = Fit(measured, dtype, self.hiding, constants)
        self._facts = Facts(model, dtype, RULES)
        self._masks = IntegerMasks(self._facts)
        self.upstream = Upstream(self._facts, self._fit, dtype, self.reasons, self.keep, bodies.copies(model.graph))

    def keep(self, node: ir.Node, reason: str) -> None:
        self.reasons.setdefault(node, reason)

    def always_float(self, node: ir.Node) -> str:
        """Why the operator stays float32 whatever its ranges are, or ""."""
        if bodies.runs_graphs(node):
            graphs = bodies.graphs_of(node)
            return f"{node.op_type} hands on float32" if graphs else f"{node.op_type} runs graphs of its own"
        unknown = next((v for v in (*node.inputs, *node.outputs) if v is not None and is_unknown(v)), None)
        if unknown is not None:
            return f"The dtype of `{unknown.name}` is not known"
        sort = operators.sort_of(node)
        if sort is Sort.FLOAT:
            return f"{node.op_type} needs float32"
        if node.op_type == "LayerNormalization" and sum(bool(v.uses()) for v in node.outputs) > 1:
            return "The norm's statistics are read"
        if _ends_the_process(node) or (
            node.op_type == "MatMul" and any(_ends_the_process(v.producer()) for v in node.inputs if v is not None)
        ):
            return "ONNX Runtime's CPU provider ends the process that opens this Transpose and MatMul with float16"
        if not operators.takes(node, self._dtype, self._opsets.get(node.domain)):
            return f"{node.op_type} is not defined for {self._dtype.name.lower()} in this opset"
        return ""

    def keep_unbounded(self) -> None:
        """Keep the nodes with a value that may be any number at other sizes and positions, as the graph says."""
        for node in self.nodes:
            for result in filter(is_float, node.outputs):
                if (reason := self._facts.unbounded(result)) and not self._masks.hides(result):
                    self.keep(node, reason)
                elif self._facts.overflows(result):
                    self.keep(node, self._too_large(result))
            for k, value in enumerate(node.inputs):
                if value is None or not is_float(value) or operators.is_gate(node, k, self._gates(node, k)):
                    continue
                reason = self._facts.unbounded(value)
                if reason and not self._masks.hides(value):
                    self.keep(node, reason)
                elif self._facts.overflows(value):
                    self.keep(node, self._too_large(value))

    def _too_large(self, value: ir.Value) -> str:
        return f"`{value.name}` may be too large for {self._dtype.name.lower()}: a guard is small, or it is exponential"

    def _gates(self, node: ir.Node, position: int) -> bool:
        """Whether the operand is of integers and multiplies data, as masks do, so that its error stays relative."""
        value = node.inputs[position]
        assert value is not None
        fact = self._facts.of(value)
        return fact.count and not fact.grows and not any(self._facts.unbounded(v) for v in node.outputs)

    def keep_first(self) -> None:
        """Keep the elementwise nodes that read inputs alone: these are float32, and a kernel reads them so."""
        for node in self.nodes:
            floats = [v for v in node.inputs if is_float(v) and v is not None and not is_constant(v)]
            if operators.sort_of(node) is Sort.ELEMENTWISE and floats and all(v.is_graph_input() for v in floats):
                self.keep(node, "It reads inputs alone")

    def keep_unfit(self) -> None:
        """Keep the nodes with a value that 16 bits do not hold."""
        for node in self.nodes:
            if node in self.reasons:
                continue
            own = operators.float_operands(node)
            for k, value in enumerate(node.inputs):
                if value is None or not is_float(value) or k in own:
                    continue
                if reason := self._fit.unfit_constant(node, k, value) if is_constant(value) else self._fit.unfit(value):
                    self.keep(node, reason)
            for value in node.outputs:
                if is_float(value) and (value.uses() or value.is_graph_output()) and (reason := self._fit.unfit(value)):
                    self.keep(node, reason)

    def keep_between(self) -> None:
        """Keep the elementwise and moving nodes that only float32 nodes stand around: they need no Casts then.

        Restored nodes do not count, so that each node is at fault by itself where nodes are restored to find out.
        """
        fixed = {node for node, reason in self.reasons.items() if reason != _RESTORED}
        for node in self.nodes:
            if node in self.reasons or operators.sort_of(node) not in (Sort.ELEMENTWISE, Sort.MOVE):
                continue
            floats = [v for v in node.inputs if is_float(v) and v is not None and not is_constant(v)]
            producers = [v.producer() for v in floats if not v.is_graph_input()]
            readers = readers_of(node)
            around = [*producers, *readers]
            read = bool(readers) or any(_is_handed_on(v, self._graph) for v in node.outputs)
            if floats and read and fixed.issuperset(around):
                fixed.add(node)
                self.keep(node, "It is between nodes of float32")


def _is_handed_on(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether a value is what a body or branch returns, in float32. graph: the main one."""
    return value.is_graph_output() and value.graph is not graph


def _ends_the_process(node: ir.Node | None) -> bool:
    """Whether the node is a Transpose that moves the first dim to the last but one, in front of a MatMul.

    ONNX Runtime 1.31 makes one FusedMatMul of the two (transBatchA), and of a Cast between them, which its CPU provider
    puts there for float16, an access to memory that is not its own.
    """
    if node is None or node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    order = list(node.attributes["perm"].as_ints())
    last = len(order) - 1
    return last >= 2 and order == [*range(1, last), 0, last] and any(u.op_type == "MatMul" for u in readers_of(node))

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
  TopK, Resize and everything that has no row here), or runs graphs of its own (If, Loop, Scan);
- where their result is steep (Sin, Floor), together with the elementwise nodes in front of them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxopt.graph.precision import operators, ranges
from onnxopt.graph.precision.fact_rules import RULES
from onnxopt.graph.precision.facts import Facts
from onnxopt.graph.precision.integer_masks import IntegerMasks
from onnxopt.graph.precision.masks import Hiding
from onnxopt.graph.precision.norms import has_float_rows
from onnxopt.graph.precision.operators import Sort
from onnxopt.graph.precision.ranges import Range

FLOAT = ir.DataType.FLOAT
_HEADROOM = 8.0  # measured inputs are not all inputs
_RESTORED = "Outputs are too far from float32 otherwise"
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Identity"})
_TIMES_UNIT = 2.0  # an array of normal numbers loses a third to a half of a unit


@dataclasses.dataclass(frozen=True)
class Kept:
    """A node that stays float32, and why."""

    node: str
    op_type: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """narrow: the nodes of the main graph whose float tensors become `dtype`. kept: the others that compute floats.

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
    kept: Collection[str] = (),
) -> Choice:
    """Choose for a normalized model, which stays as it is.

    measured: the ranges of the main graph's inputs and of what its nodes compute, by name. keep_float: a regular
    expression; nodes stay float32 in whose name it is found. kept: names of nodes that stay float32.
    """
    choosing, names = _Choosing(model, measured, dtype), frozenset(kept)
    pattern = None if keep_float is None else re.compile(keep_float)
    for node in choosing.nodes:
        if pattern is not None and pattern.search(node.name or ""):
            choosing.keep(node, "--keep-float names it")
        elif reason := choosing.always_float(node):
            choosing.keep(node, reason)
        elif node.name in names:
            choosing.keep(node, _RESTORED)
    choosing.keep_statistics()
    choosing.keep_before_steep()
    choosing.keep_unbounded()
    choosing.keep_first()
    choosing.keep_unfit()
    choosing.keep_factors_of_norms()
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


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is a float32 tensor."""
    return value is not None and value.dtype == FLOAT and isinstance(value.type, ir.TensorType)


def _is_unknown(value: ir.Value) -> bool:
    return value.dtype is None and bool(value.uses() or value.is_graph_output())


def is_constant(value: ir.Value) -> bool:
    return value.const_value is not None and not value.is_graph_input()


class _Choosing:
    """One graph while it is decided which nodes stay float32. reasons: of these, in the order of the decisions."""

    def __init__(self, model: ir.Model, measured: Mapping[str, Range], dtype: ir.DataType) -> None:
        self.nodes = [n for n in model.graph if any(map(is_float, (*n.inputs, *n.outputs)))]
        self.reasons: dict[ir.Node, str] = {}
        self.hiding = Hiding()
        self._opsets, self._measured, self._dtype = model.opset_imports, measured, dtype
        self._constants: dict[ir.Value, Range] = {}
        self._facts = Facts(model, dtype, RULES)
        self._masks = IntegerMasks(self._facts)

    def keep(self, node: ir.Node, reason: str) -> None:
        self.reasons.setdefault(node, reason)

    def always_float(self, node: ir.Node) -> str:
        """Why the operator stays float32 whatever its ranges are, or ""."""
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            return f"{node.op_type} runs graphs of its own"
        unknown = next((v for v in (*node.inputs, *node.outputs) if v is not None and _is_unknown(v)), None)
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

    def keep_statistics(self) -> None:
        """Keep reductions whose results meet their rows again, and the nodes that compute with them.

        A factor behind a norm is not kept: ONNX Runtime's optimizer knows norms with the Casts around them as PyTorch
        writes them, and makes invalid nodes of others.
        """
        reason = "It computes with a statistic of its row"
        statistics: set[ir.Value] = set()
        for node in self.nodes:
            floats = [v for v in node.inputs if is_float(v) and v is not None and not is_constant(v)]
            sort = operators.sort_of(node)
            if sort is Sort.STATISTIC and self._meets_its_row(node):
                self.keep(node, "It reduces rows to a statistic")
                statistics.update(node.outputs)
            elif (sort is Sort.ELEMENTWISE or node.op_type in _VIEWS) and floats and statistics.issuperset(floats):
                self.keep(node, reason)
                statistics.update(node.outputs)
            elif sort is Sort.ELEMENTWISE and statistics.intersection(floats):
                self.keep(node, reason)
        for node in reversed(self.nodes):
            readers = _readers(node)
            kept = bool(readers) and all(r in self.reasons for r in readers)
            if kept and _feeds_statistics(node) and any(r.op_type.startswith("Reduce") for r in readers):
                self.keep(node, "Its result is reduced to a statistic")

    def _meets_its_row(self, node: ir.Node) -> bool:
        """Whether a reduction's result is computed with, and not only read by products, as that of a pool is."""
        pending = list(node.outputs)
        while pending:
            value = pending.pop()
            for reader in (use.node for use in value.uses()):
                sort = operators.sort_of(reader)
                if sort is Sort.MOVE:
                    pending += reader.outputs
                elif sort is not Sort.PRODUCT:
                    return True
        return False

    def keep_unbounded(self) -> None:
        """Keep the nodes with a value that may be any number at other sizes and positions, as the graph says."""
        for node in self.nodes:
            for result in filter(is_float, node.outputs):
                if (reason := self._facts.unbounded(result)) and not self._masks.hides(result):
                    self.keep(node, reason)
            for k, value in enumerate(node.inputs):
                if value is None or not is_float(value) or operators.is_gate(node, k, self._gates(node, k)):
                    continue
                reason = self._facts.unbounded(value)
                if reason and not self._masks.hides(value):
                    self.keep(node, reason)
                elif self._facts.overflows(value):
                    self.keep(node, f"`{value.name}` may be too large for {self._dtype.name.lower()}: a guard is small")

    def _gates(self, node: ir.Node, position: int) -> bool:
        """Whether the operand is of integers and multiplies data, as masks do, so that its error stays relative."""
        value = node.inputs[position]
        assert value is not None
        fact = self._facts.of(value)
        return fact.count and not fact.grows and not any(self._facts.unbounded(v) for v in node.outputs)

    def keep_before_steep(self) -> None:
        """Keep what computes the operands of nodes that are steep, or where small operands decide.

        Elementwise nodes; reductions in front of guards; products of inputs and positions, as angles are; and sums of
        positive products in front of guards, such as spectra, whose small numbers 16 bits do not hold.
        """
        pending: list[tuple[ir.Value, str, bool]] = []
        for node in self.nodes:
            if operators.is_steep(node):
                pending += [(v, f"{node.op_type} reads its result", False) for v in node.inputs if v is not None]
            small = operators.small_decides(node)
            if small is not None and is_float(small) and self._has_small(small):
                self.keep(node, f"{node.op_type} reads numbers too small for {self._dtype.name.lower()}")
                pending.append((small, f"{node.op_type} reads its result", self._guard_is_small(small)))
        while pending:
            value, reason, guarded = pending.pop()
            producer = value.producer()
            if producer is None or not is_float(value) or producer in self.reasons:
                continue
            if self._passes_back(producer, guarded):
                self.keep(producer, reason)
                pending += [(v, reason, guarded) for v in producer.inputs if v is not None]
            elif guarded and operators.sort_of(producer) is Sort.STATISTIC:
                self.keep(producer, reason)
                self._keep_squares(producer, reason)

    def _passes_back(self, node: ir.Node, guarded: bool) -> bool:
        sort = operators.sort_of(node)
        if sort is not Sort.PRODUCT:
            return sort in (Sort.ELEMENTWISE, Sort.MOVE)
        if guarded:
            return self._facts.of(node.outputs[0]).low >= 0
        return all(self._facts.of(v).direct for v in node.inputs if v is not None and not is_constant(v))

    def _keep_squares(self, reduction: ir.Node, reason: str) -> None:
        """Keep the squares or magnitudes that a reduction before a guard adds up, which may be too small."""
        for producer in (v.producer() for v in reduction.inputs if v is not None):
            if producer is not None and producer.op_type in ("Pow", "Mul", "Abs") and _feeds_statistics(producer):
                self.keep(producer, reason)

    def _has_small(self, value: ir.Value) -> bool:
        return self._guard_is_small(value) or self._range(value).least < ranges.least_normal(self._dtype)

    def _guard_is_small(self, value: ir.Value) -> bool:
        return self._facts.of(value).floor < ranges.least_normal(self._dtype)

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
                if reason := self._unfit_constant(node, k, value) if is_constant(value) else self.unfit(value):
                    self.keep(node, reason)
            for value in node.outputs:
                if is_float(value) and (value.uses() or value.is_graph_output()) and (reason := self.unfit(value)):
                    self.keep(node, reason)

    def unfit(self, value: ir.Value) -> str:
        """Why a value cannot be stored in 16 bits, or ""."""
        name = self._dtype.name.lower()
        if value.name not in self._measured:
            return f"`{value.name}` was not measured"
        found = self._range(value)
        greatest = found.shown if self.hiding.ends_in_softmax(value) else found.greatest
        if greatest * _HEADROOM > ranges.largest(self._dtype):
            return f"`{value.name}` reaches {greatest:.3g}, {_HEADROOM:g} times of which {name} does not hold"
        if self._loses(found.loss, value):
            return f"`{value.name}` loses {found.loss:.1g} of itself in {name}"
        return ""

    def _loses(self, loss: float, value: ir.Value) -> bool:
        """Whether an error in a value counts. loss: as a share of the value.

        An error counts beside the sums that the value is added to, where nothing else reads it: the branches of
        residual networks may be as small as the scales that they were initialized with.
        """
        allowed = _TIMES_UNIT * ranges.unit(self._dtype)
        if loss <= allowed:
            return False
        typical, sums = self._range(value).typical, self._sums(value)
        return not sums or any(loss * typical > allowed * self._range(total).typical for total in sums)

    def _sums(self, value: ir.Value) -> list[ir.Value]:
        """The sums that a value is a term of; [] where it is read by others too, or is an output."""
        pending, sums = [value], []
        while pending:
            current = pending.pop()
            for reader, position in current.uses():
                if reader.op_type in ("Add", "Sub") and operators.is_term(reader, position):
                    sums.append(reader.outputs[0])
                elif reader.op_type in _VIEWS:
                    pending += reader.outputs
                else:
                    return []
            if current.is_graph_output():
                return []
        return sums

    def _range(self, value: ir.Value) -> Range:
        if is_constant(value):
            if value not in self._constants:
                assert value.const_value is not None
                self._constants[value] = ranges.range_of(value.const_value.numpy(), self._dtype)
            return self._constants[value]
        return self._measured.get(value.name or "", ranges.NOTHING)

    def _unfit_constant(self, node: ir.Node, position: int, value: ir.Value) -> str:
        """Why a constant operand cannot be stored in 16 bits, or ""."""
        assert value.const_value is not None
        if operators.is_bound(node, position):
            return ""
        name = self._dtype.name.lower()
        found = self._range(value)
        hidden = found.lowest <= ranges.HIDING and self.hiding.ends_in_softmax(value)
        if (found.shown if hidden else found.greatest) > ranges.largest(self._dtype):
            return f"The constant `{value.name}` is {found.greatest:.3g}, which {name} does not hold"
        if operators.is_comparison(node):
            return "" if found.loss == 0 else f"The constant `{value.name}` is compared, and {name} rounds it"
        is_term = operators.is_term(node, position) and value.const_value.size > 1
        if not is_term and self._loses(found.loss, node.outputs[0]):
            return f"The constant `{value.name}` loses {found.loss:.1g} of itself in {name}"
        return ""

    def keep_factors_of_norms(self) -> None:
        """Keep the factor and the bias of a spelled-out norm whose rows are stored in float32.

        ONNX Runtime's LayerNormFusion makes one node of it all, without the Cast between, and that node would have
        rows of float32 and a factor of 16 bits, which its own checks refuse.
        """
        for node in self.nodes:
            if node not in self.reasons or node.op_type not in ("Div", "Mul"):
                continue
            if not any(has_float_rows(v, self.reasons) for v in node.inputs):
                continue
            for factor in (r for r in _readers(node) if r.op_type == "Mul" and r not in self.reasons):
                self.keep(factor, "It is the factor of a norm of float32 rows")
                for bias in (r for r in _readers(factor) if r.op_type == "Add"):
                    self.keep(bias, "It is the bias of a norm of float32 rows")

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
            readers = _readers(node)
            around = [*producers, *readers]
            if floats and readers and fixed.issuperset(around):
                fixed.add(node)
                self.keep(node, "It stands between nodes of float32")


def _ends_the_process(node: ir.Node | None) -> bool:
    """Whether the node is a Transpose that moves the first dim to the last but one, in front of a MatMul.

    ONNX Runtime 1.31 makes one FusedMatMul of the two (transBatchA), and of a Cast between them, which its CPU provider
    puts there for float16, an access to memory that is not its own.
    """
    if node is None or node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    order = list(node.attributes["perm"].as_ints())
    last = len(order) - 1
    return last >= 2 and order == [*range(1, last), 0, last] and any(u.op_type == "MatMul" for u in _readers(node))


def _readers(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]


def _feeds_statistics(node: ir.Node) -> bool:
    """Whether the operator is one that norms and Softmax apply to a row before they reduce it."""
    squares = node.op_type == "Mul" and len(set(node.inputs)) == 1
    return node.domain == "" and (squares or node.op_type in ("Pow", "Abs", "Exp", "Sub"))

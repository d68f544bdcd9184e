"""What computes operands that must not be rounded: of steep operators, of guards, and of sums that cancel."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import operators, ranges
from onnxopt.graph.precision.facts import Facts
from onnxopt.graph.precision.fit import Fit
from onnxopt.graph.precision.operators import Sort
from onnxopt.graph.precision.values import VIEWS, feeds_statistics, is_float

Keep = Callable[[ir.Node, str], None]


class Through(enum.Enum):
    """Which nodes upstream stay float32.

    DIRECT: elementwise and moving nodes, and products of inputs and positions, as angles are. GUARD: also the sums of
    positive products that a guard bounds, such as spectra, and reductions. LOGARITHM: both. SQUARES: nodes whose
    results are data times data, which are very small where data is small. ORDER: elementwise nodes and views. VALUE:
    the one node.
    """

    DIRECT = enum.auto()
    GUARD = enum.auto()
    LOGARITHM = enum.auto()
    SQUARES = enum.auto()
    ORDER = enum.auto()
    VALUE = enum.auto()


_GUARDS = (Through.GUARD, Through.LOGARITHM)


class _Operand(NamedTuple):
    value: ir.Value
    reason: str
    through: Through


class Upstream:
    """Keeps nodes of one model. kept: those that are, which `keep` adds to. copies: as of bodies.copies."""

    def __init__(
        self,
        facts: Facts,
        fit: Fit,
        dtype: ir.DataType,
        reasons: Mapping[ir.Node, str],
        keep: Keep,
        copies: Mapping[ir.Value, Sequence[ir.Value]],
    ) -> None:
        self._facts, self._fit, self._dtype, self._reasons, self._keep = facts, fit, dtype, reasons, keep
        self._copies = copies

    def keep(self, nodes: Sequence[ir.Node]) -> None:
        """Keep what computes the operands of nodes that are steep, or where small operands decide, or that cancel."""
        pending = [operand for node in nodes for operand in self._operands(node)]
        before, seen = set(self._reasons), set[tuple[ir.Node, Through]]()
        copied = set[tuple[ir.Value, Through]]()
        while pending:
            value, reason, through = pending.pop()
            if value in self._copies and (value, through) not in copied:
                copied.add((value, through))
                pending += [_Operand(v, reason, through) for v in self._copies[value]]
            producer = value.producer()
            if producer is None or not is_float(value) or producer in before or (producer, through) in seen:
                continue
            seen.add((producer, through))
            if self._passes(producer, through):
                self._keep(producer, reason)
                if through is not Through.VALUE:
                    pending += [_Operand(v, reason, through) for v in producer.inputs if v is not None]
            elif through in _GUARDS and operators.sort_of(producer) in (Sort.STATISTIC, Sort.NORM):
                self._keep(producer, reason)
                self._keep_squares(producer, reason)

    def _operands(self, node: ir.Node) -> Iterator[_Operand]:
        """The operands of a node that must not be rounded. Keeps the node where that is its own fault."""
        reason = f"{node.op_type} reads its result"
        if operators.is_steep(node):
            yield from (_Operand(v, reason, Through.DIRECT) for v in node.inputs if v is not None)
        if operators.is_order(node) and node.inputs[0] is not None:
            yield _Operand(node.inputs[0], reason, Through.ORDER)
        small = operators.small_decides(node)
        if small is not None and is_float(small) and self._has_small(node, small):
            self._keep(node, f"{node.op_type} reads numbers too small for {self._dtype.name.lower()}")
            guarded = Through.GUARD if self._guard_is_small(small) else Through.DIRECT
            yield _Operand(small, reason, Through.LOGARITHM if operators.is_logarithm(node) else guarded)
        yield from (_Operand(v, reason, Through.SQUARES) for v in self._quotients(node))
        for value in operators.differences_near_0(node):
            self._keep(node, "It subtracts from an exponential, which may leave its last places")
            yield _Operand(value, reason, Through.VALUE)
        for value in self._fit.cancelled(node):
            self._keep(node, f"`{value.name}` is much larger than what remains of it")
            yield _Operand(value, f"{node.op_type} cancels most of its result", Through.VALUE)

    def _quotients(self, node: ir.Node) -> list[ir.Value]:
        """The operands that are divided by numbers that may be very small, or multiplied by what may be as large."""
        if node.domain != "" or node.op_type not in ("Div", "Mul"):
            return []
        a, b = node.inputs[0], node.inputs[1]
        if a is None or b is None:
            return []
        if node.op_type == "Div":
            return [a] if self._guard_is_small(b) else []
        return [one for one, other in ((a, b), (b, a)) if self._facts.overflows(other)]

    def _passes(self, node: ir.Node, through: Through) -> bool:
        """Whether a node upstream stays float32 too."""
        sort = operators.sort_of(node)
        if through is Through.VALUE:
            return True
        if through is Through.SQUARES:
            return self._facts.of(node.outputs[0]).squared and sort in (Sort.ELEMENTWISE, Sort.MOVE, Sort.PRODUCT)
        if through is Through.ORDER:
            return sort is Sort.ELEMENTWISE or node.op_type in VIEWS - {"Transpose"}
        if sort is not Sort.PRODUCT:
            return sort in (Sort.ELEMENTWISE, Sort.MOVE)
        if through in _GUARDS and self._facts.of(node.outputs[0]).low >= 0:
            return True
        return through is not Through.GUARD and all(
            self._facts.of(v).direct for v in node.inputs if v is not None and not is_constant(v)
        )

    def _keep_squares(self, reduction: ir.Node, reason: str) -> None:
        """Keep the squares or magnitudes that a reduction before a guard adds up, which may be too small."""
        for producer in (v.producer() for v in reduction.inputs if v is not None):
            if producer is not None and producer.op_type in ("Pow", "Mul", "Abs") and feeds_statistics(producer):
                self._keep(producer, reason)

    def _has_small(self, node: ir.Node, value: ir.Value) -> bool:
        if operators.is_logarithm(node):  # near 1, what is left of a number is its last places
            return True
        return self._guard_is_small(value) or self._fit.range_of(value).smallest < ranges.min_normal(self._dtype)

    def _guard_is_small(self, value: ir.Value) -> bool:
        return self._facts.of(value).floor < ranges.min_normal(self._dtype)

"""Whether measured values fit 16 bits: how large they get, and what rounding costs them and what is left of them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import operators, ranges
from onnxopt.graph.precision.constants import Constants
from onnxopt.graph.precision.masks import Hiding
from onnxopt.graph.precision.ranges import Range
from onnxopt.graph.precision.values import VIEWS

HEADROOM = 8.0  # measured inputs are not all inputs
UNMEASURED = "was not measured"  # how reasons end
_TIMES_UNIT = 2.0  # an array of normal numbers loses a third to a half of a unit
_CANCELLED = 16.0  # terms so many times as large as their sum are subtracted from one another
_EXACT = 0.05  # of a unit: what is lost less is integers, or a constant that the dtype holds


class Fit:
    """The measured values of one graph beside a 16-bit dtype."""

    def __init__(self, measured: Mapping[str, Range], dtype: ir.DataType, hiding: Hiding, constants: Constants) -> None:
        self._measured, self._dtype, self._hiding, self._constants = measured, dtype, hiding, constants

    def range_of(self, value: ir.Value) -> Range:
        """What was measured of a value, or is known of a constant."""
        if is_constant(value):
            assert value.const_value is not None
            return self._constants.range_of(value.const_value)
        return self._measured.get(value.name or "", ranges.NOTHING)

    def unfit(self, value: ir.Value) -> str:
        """Why a value cannot be stored in 16 bits, or ""."""
        name = self._dtype.name.lower()
        if value.name not in self._measured:
            return f"`{value.name}` {UNMEASURED}"
        measured = self.range_of(value)
        greatest = measured.shown if self._hiding.ends_in_softmax(value) else measured.greatest
        if greatest * HEADROOM > ranges.largest(self._dtype):
            return f"`{value.name}` reaches {greatest:.3g}, {HEADROOM:g} times of which {name} does not hold"
        if self._loses(measured.loss, value):
            return f"`{value.name}` loses {measured.loss:.1g} of itself in {name}"
        return ""

    def unfit_constant(self, node: ir.Node, position: int, value: ir.Value) -> str:
        """Why a constant operand cannot be stored in 16 bits, or ""."""
        assert value.const_value is not None
        if operators.is_bound(node, position):
            return ""
        name = self._dtype.name.lower()
        measured = self.range_of(value)
        hidden = measured.lowest <= ranges.HIDING and self._hiding.ends_in_softmax(value)
        if (measured.shown if hidden else measured.greatest) > ranges.largest(self._dtype):
            return f"The constant `{value.name}` is {measured.greatest:.3g}, which {name} does not hold"
        if operators.is_comparison(node):
            return "" if measured.loss == 0 else f"The constant `{value.name}` is compared, and {name} rounds it"
        is_term = operators.is_term(node, position) and value.const_value.size > 1
        if not is_term and self._loses(measured.loss, node.outputs[0]):
            return f"The constant `{value.name}` loses {measured.loss:.1g} of itself in {name}"
        return ""

    def cancelled(self, node: ir.Node) -> list[ir.Value]:
        """The operands of a sum or of a norm that are so much larger than what is left of them that rounding shows."""
        values = [v for v in node.inputs if v is not None and v.name in self._measured and not is_constant(v)]
        inexact = [v for v in values if self.range_of(v).loss > _EXACT * ranges.unit(self._dtype)]
        if operators.subtracts_means(node):
            return [v for v in inexact[:1] if v is node.inputs[0] and self.range_of(v).offset > _CANCELLED]
        if not operators.is_sum(node):
            return []
        remaining = self.range_of(node.outputs[0]).usual
        return [v for v in inexact if remaining and self.range_of(v).usual > _CANCELLED * remaining]

    def _loses(self, loss: float, value: ir.Value) -> bool:
        """Whether an error in a value counts. loss: as a share of the value.

        An error counts beside the sums that the value is added to, where nothing else reads it: the branches of
        residual networks may be as small as the scales that they were initialized with.
        """
        allowed = _TIMES_UNIT * ranges.unit(self._dtype)
        if loss <= allowed:
            return False
        typical, sums = self.range_of(value).typical, _sums(value)
        return not sums or any(loss * typical > allowed * self.range_of(total).typical for total in sums)


def _sums(value: ir.Value) -> list[ir.Value]:
    """The sums that a value is a term of; [] where it is read by others too, or is an output."""
    pending, sums = [value], []
    while pending:
        current = pending.pop()
        for reader, position in current.uses():
            if reader.op_type in ("Add", "Sub") and operators.is_term(reader, position):
                sums.append(reader.outputs[0])
            elif reader.op_type in VIEWS:
                pending += reader.outputs
            else:
                return []
        if current.is_graph_output():
            return []
    return sums

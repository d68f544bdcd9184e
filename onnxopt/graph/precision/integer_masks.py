"""Integers that only become numbers that hide scores, as exporters compute masks: (1 - mask) * -3.4e38."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.precision import operators
from onnxopt.graph.precision.arithmetic_facts import HIDES
from onnxopt.graph.precision.fact_rules import hides_integers
from onnxopt.graph.precision.facts import Facts
from onnxopt.graph.precision.operators import Sort


class IntegerMasks:
    """Which values of a main graph are such."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._answers: dict[ir.Value, bool] = {}

    def hides(self, value: ir.Value) -> bool:
        """Whether every reader multiplies the value by 1e4 or more, or passes it on to nodes that do."""
        if value not in self._answers:
            readers = [use.node for use in value.uses()]
            summed = value.is_graph_output() or self._facts.of(value).grows
            self._answers[value] = bool(readers) and not summed and all(self._read_so(n) for n in readers)
        return self._answers[value]

    def _read_so(self, node: ir.Node) -> bool:
        if hides_integers(node) or (node.op_type == "Cast" and node.outputs[0].dtype == ir.DataType.BOOL):
            return True
        if operators.sort_of(node) not in (Sort.ELEMENTWISE, Sort.MOVE):
            return False
        constants = [v for v in node.inputs if v is not None and v.const_value is not None and not v.is_graph_input()]
        if node.op_type == "Mul" and any(self._facts.of(v).magnitude >= HIDES for v in constants):
            return True
        return all(self._facts.unbounded(v) != "" and self.hides(v) for v in node.outputs)

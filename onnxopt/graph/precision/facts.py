"""What a graph says of its values whatever its inputs are: an abstract interpretation, one rule for each operator.

Measured ranges are those of the inputs that were drawn. A graph says more: Clip(x, 1e-10) reaches 1e-10 for silence,
positions reach any integer, and a sum over a dynamic dim any number. Each value has one Fact; the rules are those of
fact_rules.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.precision import ranges
from onnxopt.graph.precision.bodies import branches_of

INF = math.inf
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_INTEGERS = {
    ir.DataType.BOOL: (0.0, 1.0),
    ir.DataType.UINT8: (0.0, 255.0),
    ir.DataType.INT8: (-128.0, 127.0),
    ir.DataType.UINT16: (0.0, 65535.0),
    ir.DataType.INT16: (-32768.0, 32767.0),
}


@dataclasses.dataclass(frozen=True)
class Fact:
    """low, high: bounds of all elements.

    floor: the least magnitude that a guard leaves (an epsilon, a lower bound); infinity without a guard. reach: the
    greatest magnitude that a guard allows, as 1 / floor; 0 without one. count: linear in integers that nothing bounds,
    such as positions and lengths. grows: a sum over a dynamic dim, or linear in one. shrinks: falls with a dynamic dim
    as such sums grow, as the weights of Softmax do. data: depends on float inputs or on tables. direct: computed from
    inputs and constants by elementwise and moving operators alone. whole: integers, also as floats. squared: data
    multiplied by data, so that small data gives very small results.
    """

    low: float = -INF
    high: float = INF
    floor: float = INF
    reach: float = 0.0
    count: bool = False
    grows: bool = False
    shrinks: bool = False
    data: bool = True
    direct: bool = False
    whole: bool = False
    squared: bool = False

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


UNKNOWN = Fact()
Rule = Callable[[ir.Node, Sequence[Fact]], Fact]


class Facts:
    """The facts of a normalized model's main graph and branches. rules: by operator of ONNX's domain."""

    def __init__(self, model: ir.Model, dtype: ir.DataType, rules: Mapping[str, Rule]) -> None:
        self._facts: dict[ir.Value, Fact] = {}
        self._exact, self._largest = 1 / ranges.unit(dtype), ranges.largest(dtype)
        self._rules = rules
        self._add(model.graph)

    def _add(self, graph: ir.Graph) -> None:
        for node in graph:
            branches = branches_of(node)
            for branch in branches:
                self._add(branch)
            operands = [UNKNOWN if value is None else self.of(value) for value in node.inputs]
            rule = self._rules.get(node.op_type) if node.domain == "" else None
            fact = None if rule is None else rule(node, operands)
            for k, value in enumerate(node.outputs):
                if branches:
                    fact = joined([self.of(branch.outputs[k]) for branch in branches])
                self._facts[value] = self._settled(value, _of_result(value) if fact is None else fact)

    def of(self, value: ir.Value) -> Fact:
        """The fact of a value."""
        if value not in self._facts:
            constant = value.const_value is not None and not value.is_graph_input()
            self._facts[value] = _constant(value) if constant else of_dtype(value.dtype)
        return self._facts[value]

    def unbounded(self, value: ir.Value) -> str:
        """Why measured ranges say nothing of the value at other sizes, or ""."""
        fact = self.of(value)
        if fact.grows:
            return f"`{value.name}` grows with a dynamic dim"
        return f"`{value.name}` is linear in integers that nothing bounds" if fact.count else ""

    def overflows(self, value: ir.Value) -> bool:
        """Whether a guard allows elements that the dtype does not hold."""
        fact = self.of(value)
        return min(fact.reach, fact.magnitude) > self._largest

    def _settled(self, value: ir.Value, fact: Fact) -> Fact:
        """Integers that the dtype holds exactly are no counts, and bounded sums do not grow."""
        if fact.count and fact.magnitude <= self._exact:
            fact = dataclasses.replace(fact, count=False)
        if fact.grows and fact.magnitude * 8 <= self._largest:
            fact = dataclasses.replace(fact, grows=False)
        if value.dtype is not None and value.dtype.is_integer():
            fact = dataclasses.replace(fact, whole=True)
        if value.dtype in _INTEGERS and value.dtype is not None:
            low, high = _INTEGERS[value.dtype]
            fact = dataclasses.replace(fact, low=max(fact.low, low), high=min(fact.high, high), count=False, whole=True)
        return fact


def _of_result(value: ir.Value) -> Fact:
    """What a node without a rule computes: data, or integers of any size."""
    is_integer = value.dtype is not None and value.dtype.is_integer()
    return dataclasses.replace(of_dtype(value.dtype), direct=False) if is_integer else UNKNOWN


def of_dtype(dtype: ir.DataType | None) -> Fact:
    """What the dtype alone says of an input's elements."""
    if dtype is None or dtype in FLOATS:
        return Fact(direct=True)
    low, high = _INTEGERS.get(dtype, (-INF, INF))
    return Fact(low, high, count=dtype not in _INTEGERS, data=False, direct=True, whole=True)


def _constant(value: ir.Value) -> Fact:
    assert value.const_value is not None
    array = value.const_value.numpy()
    if not array.size or array.dtype.kind not in "biuf":
        return dataclasses.replace(UNKNOWN, data=False, direct=True)
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if not finite.size or finite.size != array.size:
        return dataclasses.replace(UNKNOWN, data=False, direct=True)
    return Fact(float(finite.min()), float(finite.max()), data=False, direct=True)


def joined(facts: Sequence[Fact]) -> Fact:
    """What elements of one of several operands are."""
    return Fact(
        min(f.low for f in facts),
        max(f.high for f in facts),
        min(least(f) for f in facts) if any(f.floor < INF for f in facts) else INF,
        max(f.reach for f in facts),
        any(f.count for f in facts),
        any(f.grows for f in facts),
        any(f.shrinks for f in facts),
        any(f.data for f in facts),
        all(f.direct for f in facts),
        all(f.whole for f in facts),
        any(f.squared for f in facts),
    )


def least(fact: Fact) -> float:
    """The least magnitude: of a guard, or of a value that is positive everywhere."""
    return min(fact.floor, fact.low if fact.low > 0 else INF)


def bounded(low: float, high: float) -> Rule:
    """The rule of operators whose results are within these bounds."""

    def rule(_node: ir.Node, x: Sequence[Fact]) -> Fact:
        return Fact(low, high, data=any(f.data for f in x), direct=all(f.direct for f in x))

    return rule

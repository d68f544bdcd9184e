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

from onnxopt.graph.branches import branches_of
from onnxopt.graph.precision import bodies, carried, growth, operators, ranges
from onnxopt.graph.precision.bodies import Body
from onnxopt.graph.precision.operators import Sort
from onnxopt.graph.precision.values import FLOATS

INF = math.inf
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
_COUNTER = Fact(0.0, INF, count=True, data=False, direct=True, whole=True)  # of a Loop's steps
Rule = Callable[[ir.Node, Sequence[Fact]], Fact]


class Facts:
    """The facts of a normalized model's main graph, branches and bodies. rules: by operator of ONNX's domain.

    A body's are those of all steps: what comes into a step is what came into the first one, or out of the step before.
    """

    def __init__(self, model: ir.Model, dtype: ir.DataType, rules: Mapping[str, Rule]) -> None:
        self._facts: dict[ir.Value, Fact] = {}
        self._exact, self._largest = 1 / ranges.unit(dtype), ranges.largest(dtype)
        self._rules = rules
        self._add(model.graph)

    def _add(self, graph: ir.Graph) -> None:
        for node in graph:
            branches, body = branches_of(node), bodies.body_of(node)
            for branch in branches:
                self._add(branch)
            if body is not None:
                self._add_body(body)
                continue
            fact = None if branches else self._result(node)
            for k, value in enumerate(node.outputs):
                if branches:
                    fact = merged([self.of(branch.outputs[k]) for branch in branches])
                self._facts[value] = self._settled(value, _result_fact(value) if fact is None else fact)

    def _result(self, node: ir.Node) -> Fact | None:
        """The fact of what a node computes; None of an operator without a rule."""
        operands = [UNKNOWN if value is None else self.of(value) for value in node.inputs]
        rule = self._rules.get(node.op_type) if node.domain == "" else None
        if rule is None:
            sums = (f for value, f in zip(operators.averaged(node), operands, strict=True) if value is not None)
            passes = any(f.grows for f in sums) and operators.sort_of(node) is not Sort.NORM
            return dataclasses.replace(UNKNOWN, grows=True) if passes and _is_real(node) else None
        fact, blend = rule(node, operands), growth.blended(node)
        if blend is None:
            return fact
        weight, *ends = (self.of(value) for value in blend)
        if weight.low < 0 or weight.high > 1:
            return fact
        low, high = min(f.low for f in ends), max(f.high for f in ends)
        return dataclasses.replace(fact, low=max(low, fact.low), high=min(high, fact.high))

    def _add_body(self, body: Body) -> None:
        """The facts of a body's values, and of the results of its node."""
        starts = [UNKNOWN if s.start is None else self.of(s.start) for s in body.states]
        starts = [dataclasses.replace(fact, direct=False) for fact in starts]
        for value, inside in body.scanned:
            self._facts[inside] = UNKNOWN if value is None else self.of(value)
        if body.node.op_type == "Loop":
            steps = body.node.inputs[0]
            last = INF if steps is None else max(self.of(steps).high - 1, 0.0)
            counter = body.graph.inputs[0]
            self._facts[counter] = self._settled(counter, dataclasses.replace(_COUNTER, high=last))
        self._step(body, [dataclasses.replace(fact, low=-INF, high=INF, grows=True) for fact in starts])
        grows = growth.growing(body, lambda v: self.of(v).grows, lambda v: (self.of(v).low, self.of(v).high))
        lasting = not carried.runs_as_measured(body)
        facts, before, rounds = starts, list[Fact](), 0
        while not rounds or facts != before:
            facts = [
                dataclasses.replace(f, grows=f.grows or lasting, count=f.count or not f.data) if k in grows else f
                for k, f in enumerate(facts)
            ]
            after = self._step(body, facts)
            joint = [merged(pair) for pair in zip(facts, after, strict=True)]
            if rounds:
                joint = [_widened(*pair) for pair in zip(facts, joint, strict=True)]
            before, facts, rounds = facts, joint, rounds + 1
        for state, fact in zip(body.states, facts, strict=True):
            self._facts[state.result] = fact
        for inner, result in body.stacked:
            self._facts[result] = dataclasses.replace(self.of(inner), direct=False)

    def _step(self, body: Body, facts: Sequence[Fact]) -> list[Fact]:
        """The facts of the states behind a step that begins with these."""
        for state, fact in zip(body.states, facts, strict=True):
            self._facts[state.inside] = self._settled(state.inside, fact)
        self._add(body.graph)
        return [dataclasses.replace(self.of(state.after), direct=False) for state in body.states]

    def of(self, value: ir.Value) -> Fact:
        """The fact of a value."""
        if value not in self._facts:
            constant = value.const_value is not None and not value.is_graph_input()
            self._facts[value] = _constant(value) if constant else dtype_fact(value.dtype)
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


def _is_real(node: ir.Node) -> bool:
    return any(value.dtype is None or value.dtype in FLOATS for value in node.outputs)


def _widened(before: Fact, after: Fact) -> Fact:
    """A fact whose bounds no further step moves, of one that a step made of another."""
    return dataclasses.replace(
        after,
        low=-INF if after.low < before.low else after.low,
        high=INF if after.high > before.high else after.high,
        floor=0.0 if after.floor < before.floor else after.floor,
        reach=INF if after.reach > before.reach else after.reach,
    )


def _result_fact(value: ir.Value) -> Fact:
    """What a node without a rule computes: data, or integers of any size."""
    is_integer = value.dtype is not None and value.dtype.is_integer()
    return dataclasses.replace(dtype_fact(value.dtype), direct=False) if is_integer else UNKNOWN


def dtype_fact(dtype: ir.DataType | None) -> Fact:
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


def merged(facts: Sequence[Fact]) -> Fact:
    """What elements of one of several operands are."""
    return Fact(
        min(f.low for f in facts),
        max(f.high for f in facts),
        min(lower_bound(f) for f in facts) if any(f.floor < INF for f in facts) else INF,
        max(f.reach for f in facts),
        any(f.count for f in facts),
        any(f.grows for f in facts),
        any(f.shrinks for f in facts),
        any(f.data for f in facts),
        all(f.direct for f in facts),
        all(f.whole for f in facts),
        any(f.squared for f in facts),
    )


def lower_bound(fact: Fact) -> float:
    """The least magnitude: of a guard, or of a value that is positive everywhere."""
    return min(fact.floor, fact.low if fact.low > 0 else INF)


def bounded(low: float, high: float) -> Rule:
    """The rule of operators whose results are within these bounds."""

    def rule(_node: ir.Node, x: Sequence[Fact]) -> Fact:
        return Fact(low, high, data=any(f.data for f in x), direct=all(f.direct for f in x))

    return rule

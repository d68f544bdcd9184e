"""Which states of a Loop or Scan may grow with its steps: those that are added to or multiplied, not chosen or blended.

h = Tanh(...)   h = Concat(h, new)   h = Max(h, new)   h = z * h + (1 - z) * new   do not
h = h + new     h = MatMul(h, a)     h = 1.1 * h                                   do
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxopt.graph.branches import branches_of
from onnxopt.graph.match import constant
from onnxopt.graph.precision import bodies, operators
from onnxopt.graph.precision.bodies import Body
from onnxopt.graph.precision.operators import Sort

Bounds = Callable[[ir.Value], tuple[float, float]]
_CHOOSES = frozenset({"Max", "Min", "Relu", "Neg", "Abs", "Cast", "Where", "Clip", "ReduceMean", "ReduceMax",
                      "ReduceMin", "GlobalAveragePool", "AveragePool"})  # fmt: skip
_ROUNDING = 1e-6


class Size(enum.IntEnum):
    """How large elements are beside those of the states and of other data: NONE does not depend on states, or is
    bounded; SAME is at most as large; MORE may be larger."""

    NONE = 0
    SAME = 1
    MORE = 2


def growing(body: Body, depends: Callable[[ir.Value], bool], bounds: Bounds) -> set[int]:
    """The positions of the states that may grow.

    depends: whether a value is linear in a state. bounds: of a value's elements.
    """
    sizes = _Sizes(depends, bounds)
    for state in body.states:
        sizes.by_value[state.inside] = Size.SAME
    sizes.take(body.graph)
    return {k for k, state in enumerate(body.states) if sizes.of(state.after) is Size.MORE}


class _Sizes:
    def __init__(self, depends: Callable[[ir.Value], bool], bounds: Bounds) -> None:
        self.by_value: dict[ir.Value, Size] = {}
        self._depends, self._bounds = depends, bounds

    def of(self, value: ir.Value | None) -> Size:
        return Size.NONE if value is None else self.by_value.get(value, Size.NONE)

    def take(self, graph: ir.Graph) -> None:
        """Find the sizes of all values of a graph."""
        for node in graph:
            branches, body = branches_of(node), bodies.body_of(node)
            for branch in branches:
                self.take(branch)
            if body is not None:
                self._take_body(body)
            for k, value in enumerate(node.outputs):
                if branches:
                    self.by_value[value] = max(self.of(branch.outputs[k]) for branch in branches)
                elif body is None:
                    self.by_value[value] = self._size(node) if self._depends(value) else Size.NONE

    def _take_body(self, body: Body) -> None:
        """The states of a body in this one begin as what they are copied from, and may become larger in a step."""
        for value, inside in body.scanned:
            self.by_value[inside] = self.of(value)
        before: list[Size] = []
        sizes = [self.of(state.start) for state in body.states]
        while sizes != before:
            self.by_value |= {state.inside: size for state, size in zip(body.states, sizes, strict=True)}
            self.take(body.graph)
            before, sizes = sizes, [max(s, self.of(t.after)) for s, t in zip(sizes, body.states, strict=True)]
        self.by_value |= {state.result: size for state, size in zip(body.states, sizes, strict=True)}
        self.by_value |= {result: self.of(inner) for inner, result in body.stacked}

    def _size(self, node: ir.Node) -> Size:
        """The size of a result that depends on states."""
        operands = [v for v in node.inputs if v is not None]
        blend = blended(node)
        if blend is not None and self._is_share(blend[0]):
            return max(self.of(blend[1]), self.of(blend[2]))
        greatest = max(map(self.of, operands), default=Size.NONE)
        if greatest is not Size.SAME or node.domain != "":
            return greatest
        if node.op_type in _CHOOSES or operators.sort_of(node) is Sort.MOVE:
            return Size.SAME
        if node.op_type == "Mul" and any(self.of(v) is Size.NONE and self._is_small(v) for v in operands):
            return Size.SAME
        divisor = constant(node.inputs[1]) if node.op_type == "Div" else None
        if divisor is not None and divisor.size and abs(divisor).min() >= 1:
            return Size.SAME
        if node.op_type == "MatMul" and getattr(operands[0].producer(), "op_type", "") == "Softmax":
            return Size.SAME
        return Size.SAME if _averages(node) else Size.MORE

    def _is_share(self, value: ir.Value) -> bool:
        low, high = self._bounds(value)
        return low >= 0 and high <= 1

    def _is_small(self, value: ir.Value) -> bool:
        low, high = self._bounds(value)
        return low >= -1 and high <= 1


def blended(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The weight z, a and b of z * a + (1 - z) * b, b + z * (a - b) or b - z * (b - a); None of other sums."""
    if node.domain != "" or node.op_type not in ("Add", "Sub") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if node.op_type == "Add":
        for b, product in ((left, right), (right, left)):
            if toward := _toward(b, product, 1):
                return toward
        for first, second in ((left, right), (right, left)):
            for z, a in _factors(first):
                for rest, b in _factors(second):
                    if _is_rest(rest, z):
                        return z, a, b
        return None
    return _toward(left, right, -1)


def _toward(b: ir.Value, product: ir.Value, sign: int) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Of a product z * (a - b), or z * (b - a) where the sign is -1."""
    for z, difference in _factors(product):
        node = difference.producer()
        if node is None or node.op_type != "Sub":
            continue
        first, second = node.inputs
        if first is None or second is None:
            continue
        if sign > 0 and second is b:
            return z, first, b
        if sign < 0 and first is b:
            return z, second, b
    return None


def _factors(value: ir.Value) -> Sequence[tuple[ir.Value, ir.Value]]:
    node = value.producer()
    if node is None or node.op_type != "Mul" or node.inputs[0] is None or node.inputs[1] is None:
        return ()
    return (node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])


def _is_rest(value: ir.Value, weight: ir.Value) -> bool:
    """Whether a value is 1 - weight."""
    node = value.producer()
    if node is None or node.op_type != "Sub" or node.inputs[1] is not weight:
        return False
    one = constant(node.inputs[0])
    return one is not None and one.size > 0 and bool((one == 1).all())


def _averages(node: ir.Node) -> bool:
    """Whether a sum adds terms times constants of at most 1 together."""
    if node.op_type != "Add":
        return False
    total = 0.0
    for value in node.inputs:
        numbers = [c for z, _ in (_factors(value) if value is not None else ()) if (c := constant(z)) is not None]
        if not numbers or not numbers[0].size:
            return False
        total += float(abs(numbers[0]).max())
    return total <= 1 + _ROUNDING

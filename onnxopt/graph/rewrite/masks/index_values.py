"""What integer, bool and float tensors hold as functions of the index, so that masks built from ranges are understood.

    Range(0, n, 1)                        i
    x[b, 0, q, 0] >= y[0, 0, 0, k]        q - k >= 0: a causal mask
    CumSum(Cast(Not(i + 1 - i == 1)))     0 everywhere

An integer tensor is an affine function of its indices, offset + sum of coefficient * index, or unknown. A bool tensor
is true where such a function, or each of some, is not negative. A float tensor holds one number where that is so, and
another elsewhere. Each of these holds at every run: offsets may be symbolic dims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite.masks.choice_arithmetic import combined
from onnxopt.graph.rewrite.masks.index_functions import (
    ALWAYS,
    FLOATS,
    NEVER,
    Affine,
    Choice,
    IndexFunction,
    Truth,
    fit,
    fit_choice,
    mapped,
)
from onnxopt.graph.shapes.dims import Dim, Dims, simplest
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.graph.shapes.value_dims import uniform


class IndexValues:
    """Functions of the index that the tensors of one graph hold. known: dims and contents of the graph's values."""

    def __init__(self, graph: ir.Graph, inferred: Knowledge) -> None:
        self.inferred = inferred
        self._functions: dict[ir.Value, IndexFunction | None] = {}
        self._rules: dict[str, Callable[[ir.Node], IndexFunction | None]] = {
            "Range": self._range, "Unsqueeze": self._unsqueeze, "Squeeze": self._squeeze, "Expand": self._expand,
            "Reshape": self._reshape, "Transpose": self._transpose,
            "Identity": self._first, "Cast": self._cast, "Slice": self._slice, "Concat": self._concat,
            "CumSum": self._cumsum, "GatherND": self._gather_nd, "GatherElements": self._gather_elements,
            "Neg": self._neg, "Add": self._sum, "Sub": self._sum, "Mul": self._mul, "Equal": self._equal,
            "Not": self._not, "And": self._and, "Or": self._or, "GreaterOrEqual": self._compare,
            "LessOrEqual": self._compare, "Greater": self._compare, "Less": self._compare, "BitwiseAnd": self._and,
            "Where": self._where, "Trilu": self._trilu, "Max": self._extreme, "Min": self._extreme,
        }  # fmt: skip
        for node in graph:  # in topological order, so that no later call recurses deep
            if node.op_type in self._rules:
                self.of(node.outputs[0])

    def of(self, value: ir.Value | None) -> IndexFunction | None:
        """What a value holds, None where that is not known."""
        if value is None:
            return None
        if value not in self._functions:
            self._functions[value] = None  # a value that depends on itself is not known
            self._functions[value] = self._computed(value)
        return self._functions[value]

    def dims(self, value: ir.Value | None) -> Dims | None:
        """The dims of a value, None where not even its rank is known."""
        return self.inferred.dims(value)

    def _elements(self, value: ir.Value | None) -> list[Dim] | None:
        """The elements of a small integer tensor, None where they are not known."""
        contents = self.inferred.contents(value)
        return None if contents is None else list(contents.flat)

    def _computed(self, value: ir.Value) -> IndexFunction | None:
        if value.const_value is not None:
            dtype = value.const_value.dtype
            if dtype.is_integer() or dtype == ir.DataType.BOOL:
                return fit(value.const_value.numpy())
            return fit_choice(value.const_value.numpy()) if dtype in FLOATS else None
        elements = self._elements(value) if value.dtype != ir.DataType.BOOL else None
        if elements is not None and len(elements) == 1:
            return Affine(elements[0], (0,) * self._rank(value))
        if (number := uniform(value)) is not None and value.dtype is not None and value.dtype.is_floating_point():
            return Choice(ALWAYS, number, number)
        node = value.producer()
        rule = self._rules.get(node.op_type) if node is not None and node.domain in ("", "ai.onnx") else None
        if node is None or rule is None or len(node.outputs) != 1:
            return None
        return self._without_single_axes(rule(node), value)

    def _without_single_axes(self, function: IndexFunction | None, value: ir.Value) -> IndexFunction | None:
        """The function of a value without its axes of one element, whose index is always 0."""
        dims = self.dims(value)
        if dims is None:
            return function

        def without(expression: Affine) -> Affine:
            widened = expression.widened(len(dims))
            return Affine(expression.offset, tuple(0 if d == 1 else c for c, d in zip(widened, dims, strict=True)))

        return mapped(function, without)

    def _rank(self, value: ir.Value | None) -> int:
        dims = self.dims(value)
        return len(dims) if dims is not None else 0

    def _affine(self, value: ir.Value | None) -> Affine | None:
        function = self.of(value)
        return function if isinstance(function, Affine) else None

    def _truth(self, value: ir.Value | None) -> Truth | None:
        function = self.of(value)
        return function if isinstance(function, Truth) else None

    # --- one rule an operator -----------------------------------------------------------------------------------------

    def _range(self, node: ir.Node) -> IndexFunction | None:
        start, delta = self._affine(node.inputs[0]), self._affine(node.inputs[2])
        if start is None or delta is None or not isinstance(delta.offset, int):
            return None
        return Affine(start.offset, (delta.offset,))

    def _first(self, node: ir.Node) -> IndexFunction | None:
        return self.of(node.inputs[0])

    def _moved(self, function: IndexFunction | None, move: Callable[[Dims], Dims], rank: int) -> IndexFunction | None:
        """The function where `move` says which coefficient each axis of the result has. rank: of the operand."""
        return mapped(function, lambda expression: Affine(expression.offset, move(expression.widened(rank))))

    def _unsqueeze(self, node: ir.Node) -> IndexFunction | None:
        axes, dims = self._elements(node.inputs[1]), self.dims(node.inputs[0])
        if axes is None or dims is None or not all(isinstance(a, int) for a in axes):
            return None
        rank = len(dims) + len(axes)
        new = {a % rank for a in axes if isinstance(a, int)}

        def move(coefficients: Dims) -> Dims:
            rest = iter(coefficients)
            return tuple(0 if k in new else next(rest) for k in range(rank))

        return self._moved(self.of(node.inputs[0]), move, len(dims))

    def _squeeze(self, node: ir.Node) -> IndexFunction | None:
        dims = self.dims(node.inputs[0])
        axes = self._elements(node.inputs[1]) if len(node.inputs) > 1 else None
        if dims is None or axes is None:
            return None
        removed = {a % len(dims) for a in axes if isinstance(a, int)}
        return self._moved(
            self.of(node.inputs[0]), lambda c: tuple(x for k, x in enumerate(c) if k not in removed), len(dims)
        )

    def _reshape(self, node: ir.Node) -> IndexFunction | None:
        """Of a Reshape that adds or removes dims of 1."""
        before, after = self.dims(node.inputs[0]), self.dims(node.outputs[0])
        if before is None or after is None or [d for d in before if d != 1] != [d for d in after if d != 1]:
            return None
        moved = [k for k, dim in enumerate(before) if dim != 1]

        def move(coefficients: Dims) -> Dims:
            rest = iter(moved)
            return tuple(0 if dim == 1 else coefficients[next(rest)] for dim in after)

        return self._moved(self.of(node.inputs[0]), move, len(before))

    def _expand(self, node: ir.Node) -> IndexFunction | None:
        return self._moved(self.of(node.inputs[0]), lambda c: c, self._rank(node.outputs[0]))

    def _transpose(self, node: ir.Node) -> IndexFunction | None:
        rank = self._rank(node.inputs[0])
        perm = node.attributes.get_ints("perm") or tuple(reversed(range(rank)))
        return self._moved(self.of(node.inputs[0]), lambda dims: tuple(dims[axis] for axis in perm), rank)

    def _cast(self, node: ir.Node) -> IndexFunction | None:
        function, to = self.of(node.inputs[0]), ir.DataType(node.attributes.get_int("to"))
        if isinstance(function, Choice):
            return self._cast_choice(function, to)
        if isinstance(function, Affine) and to in (ir.DataType.INT64, ir.DataType.INT32):
            return function
        if isinstance(function, Truth):
            if to == ir.DataType.BOOL:
                return function
            if to.is_integer() and (function.always or function.never):
                return Affine(int(function.always))
            if to in FLOATS:
                return Choice(function, 1.0, 0.0)
        return None

    def _cast_choice(self, choice: Choice, to: ir.DataType) -> IndexFunction | None:
        if to == ir.DataType.BOOL:
            return self._where_equal(choice, 0.0, negate=True)
        if to not in FLOATS:
            return None
        with np.errstate(over="ignore"):
            shown, hidden = (float(np.array(n).astype(to.numpy())) for n in (choice.shown, choice.hidden))
        return Choice(choice.truth, shown, hidden)

    def _where_equal(self, choice: Choice, number: float, *, negate: bool = False) -> Truth | None:
        """Where the choice is this number (negate: is not)."""
        first, second = (choice.shown == number) != negate, (choice.hidden == number) != negate
        if first == second:
            return ALWAYS if first else NEVER
        return choice.truth if first else choice.truth.negated()

    def _where(self, node: ir.Node) -> IndexFunction | None:
        truth, shown, hidden = self._truth(node.inputs[0]), uniform(node.inputs[1]), uniform(node.inputs[2])
        if truth is not None and (truth.always or truth.never):
            return self.of(node.inputs[1 if truth.always else 2])
        if truth is None or shown is None or hidden is None or self._rank(node.outputs[0]) == 0:
            return None
        return Choice(truth, shown, hidden)

    def _trilu(self, node: ir.Node) -> IndexFunction | None:
        """Trilu of a tensor of one number, which becomes 0 above the k-th diagonal (upper: below it)."""
        number = uniform(node.inputs[0])
        diagonal = self._elements(node.inputs[1]) if len(node.inputs) > 1 else [0]
        rank = self._rank(node.outputs[0])
        if number is None or diagonal is None or not isinstance(diagonal[0], int) or rank < 2:
            return None
        sign = -1 if node.attributes.get_int("upper", True) else 1
        inside = Truth(Affine(sign * diagonal[0], (0,) * (rank - 2) + (sign, -sign)))
        return Choice(inside, number, 0.0)

    def _slice(self, node: ir.Node) -> IndexFunction | None:
        starts = self._elements(node.inputs[1])
        axes = self._elements(node.inputs[3]) if len(node.inputs) > 3 else None
        steps = self._elements(node.inputs[4]) if len(node.inputs) > 4 else [1]
        rank = self._rank(node.inputs[0])
        if starts is None or axes is None or steps is None or not rank:
            return None
        cuts = list(zip(axes, starts, (*steps, *(1,) * len(axes)), strict=False))

        def sliced(expression: Affine) -> Affine | None:
            coefficients, offset = expression.widened(rank), expression.offset
            for axis, start, step in cuts:
                if not isinstance(axis, int) or step != 1:
                    return None
                if coefficients[axis] == 0:
                    continue
                if not isinstance(start, int) or start < 0:
                    return None
                offset = simplest(offset + coefficients[axis] * start)
            return Affine(offset, coefficients)

        return mapped(self.of(node.inputs[0]), sliced)

    def _concat(self, node: ir.Node) -> IndexFunction | None:
        """The affine function of all parts, where each part continues the one before it."""
        rank = self._rank(node.inputs[0])
        parts = [self._affine(v) for v in node.inputs]
        if not rank or any(p is None for p in parts):
            return None
        axis = node.attributes.get_int("axis") % rank
        whole: Affine | None = None
        length: Dim = 0
        for part, value in zip(parts, node.inputs, strict=True):
            dims = self.dims(value)
            if part is None or dims is None:
                return None
            whole = part if whole is None else _continued(whole, length, part, axis, rank)
            if whole is None:
                return None
            length = simplest(length + dims[axis])
        return whole

    def _cumsum(self, node: ir.Node) -> IndexFunction | None:
        """Running totals of zeros are zeros."""
        summed = self._affine(node.inputs[0])
        return summed if summed is not None and summed.offset == 0 and summed.constant else None

    def positions(self, indices: ir.Value | None) -> list[Affine | None] | None:
        """By dim of the data, which position GatherND's indices hold as a function of all their axes but the last."""
        if indices is None or not self._rank(indices):
            return None
        if indices.const_value is not None and not indices.is_graph_input():
            fitted = map(fit, np.moveaxis(indices.const_value.numpy(), -1, 0))
            return [function if isinstance(function, Affine) else None for function in fitted]
        concat, dims = indices.producer(), self.dims(indices) or ()
        parts: Sequence[ir.Value | None] = [indices]
        if dims[-1] != 1:
            if (
                concat is None
                or concat.op_type != "Concat"
                or concat.attributes.get_int("axis") not in (-1, len(dims) - 1)
            ):
                return None
            parts = concat.inputs
        if any((part_dims := self.dims(part)) is None or part_dims[-1] != 1 for part in parts):
            return None
        affine = map(self._affine, parts)
        return [None if a is None else Affine(a.offset, a.widened(len(dims))[:-1]) for a in affine]

    def _gather_nd(self, node: ir.Node) -> IndexFunction | None:
        data = self._affine(node.inputs[0])
        if data is None or node.attributes.get_int("batch_dims", 0) != 0 or self._rank(node.inputs[0]) == 0:
            return None
        coefficients = data.widened(self._rank(node.inputs[0]))
        if not any(coefficients):
            return Affine(data.offset)
        positions = self.positions(node.inputs[1])
        if positions is None or len(positions) != len(coefficients):
            return None
        result = Affine(data.offset)
        for coefficient, position in zip(coefficients, positions, strict=True):
            if not coefficient:
                continue
            if position is None or not position.never_negative():
                return None
            result = result.plus(position, coefficient)
        return result

    def _gather_elements(self, node: ir.Node) -> IndexFunction | None:
        """Elements of a tensor of one number."""
        data = self._affine(node.inputs[0])
        return data if data is not None and data.constant else None

    def _neg(self, node: ir.Node) -> IndexFunction | None:
        negated = self._affine(node.inputs[0])
        return None if negated is None else Affine(0).plus(negated, -1)

    def _sum(self, node: ir.Node) -> IndexFunction | None:
        a, b = self.of(node.inputs[0]), self.of(node.inputs[1])
        if isinstance(a, Choice) and isinstance(b, Choice):
            return combined(node, a, b)
        return (
            a.plus(b, 1 if node.op_type == "Add" else -1) if isinstance(a, Affine) and isinstance(b, Affine) else None
        )

    def _extreme(self, node: ir.Node) -> IndexFunction | None:
        """Max or Min of two masks, as of a mask and the lowest number that 16 bits take."""
        choices = [self.of(v) for v in node.inputs]
        a, b = choices if len(choices) == 2 else (None, None)
        return combined(node, a, b) if isinstance(a, Choice) and isinstance(b, Choice) else None

    def _mul(self, node: ir.Node) -> IndexFunction | None:
        a, b = self.of(node.inputs[0]), self.of(node.inputs[1])
        if isinstance(a, Choice) and isinstance(b, Choice):
            return combined(node, a, b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Affine) and isinstance(other, Affine) and other.constant:
                return Affine(0).plus(one, other.offset)
        return None

    def _compare(self, node: ir.Node) -> IndexFunction | None:
        less, more = (node.inputs[:2])[:: -1 if node.op_type.startswith("Greater") else 1]
        strictly = Affine(0 if node.op_type.endswith("OrEqual") else -1)
        limit, apart = self._affine(more), _absolute(less)
        distance = self._affine(apart if apart is not None else less)
        if limit is None or distance is None:
            return None
        difference = limit.plus(distance, -1).plus(strictly)
        if apart is None:
            return Truth(difference)
        return Truth(difference).both(Truth(limit.plus(distance).plus(strictly)))

    def _equal(self, node: ir.Node) -> IndexFunction | None:
        for one, other in (node.inputs[:2], node.inputs[1::-1]):
            choice, number = self.of(one), uniform(other)
            if isinstance(choice, Choice) and number is not None:
                return self._where_equal(choice, number)
        a, b = self._affine(node.inputs[0]), self._affine(node.inputs[1])
        if a is None or b is None:
            return None
        difference = a.plus(b, -1)
        if not difference.constant or not isinstance(difference.offset, int):
            return None
        return ALWAYS if difference.offset == 0 else NEVER

    def _not(self, node: ir.Node) -> IndexFunction | None:
        truth = self._truth(node.inputs[0])
        return None if truth is None else truth.negated()

    def _and(self, node: ir.Node) -> IndexFunction | None:
        a, b = self._truth(node.inputs[0]), self._truth(node.inputs[1])
        return None if a is None or b is None else a.both(b)

    def _or(self, node: ir.Node) -> IndexFunction | None:
        operands: Sequence[Truth | None] = [self._truth(v) for v in node.inputs]
        return ALWAYS if any(o is not None and o.always for o in operands) else None


def _absolute(value: ir.Value | None) -> ir.Value | None:
    """x of Abs(x)."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and (node.domain, node.op_type) == ("", "Abs") else None


def _continued(before: Affine, length: Dim, after: Affine, axis: int, rank: int) -> Affine | None:
    """The affine function of two parts joined along `axis`, the first of `length` elements; None if there is none."""
    a, b = list(before.widened(rank)), list(after.widened(rank))
    if length == 1:
        a[axis] = b[axis]
    if a != b:
        return None
    expected = simplest(before.offset + a[axis] * length)
    return Affine(before.offset, tuple(a)) if expected == after.offset else None

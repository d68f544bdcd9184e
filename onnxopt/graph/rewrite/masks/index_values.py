"""What integer and bool tensors hold, as functions of the index: how a mask that was built from ranges is understood.

    Range(0, n, 1)              i
    x[b, 0, q, 0] >= y[0, 0, 0, k]    q - k >= 0, so: causal
    CumSum(Cast(Not(i + 1 - i == 1)))   0 everywhere

An integer tensor is affine in its indices, offset + sum of coefficient * index, or unknown. A bool tensor is true
where such an expression is not negative. A float tensor is one number where that holds and another elsewhere. All of it
holds for every run: offsets may be symbolic dims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite.masks.index_functions import (
    ALWAYS,
    FLOATS,
    NEVER,
    Affine,
    Choice,
    Found,
    Truth,
    fit,
    fit_choice,
    simplified,
    uniform,
)
from onnxopt.graph.rewrite.symbolic import AtMost, Dim, Symbols


class IndexValues:
    """Finds out what tensors of one graph hold."""

    def __init__(self, graph: ir.Graph, symbols: Symbols) -> None:
        self.symbols = symbols
        self._found: dict[ir.Value, Found] = {}
        self._rules: dict[str, Callable[[ir.Node], Found]] = {
            "Range": self._range, "Unsqueeze": self._unsqueeze, "Squeeze": self._squeeze, "Expand": self._expand,
            "Identity": self._first, "Cast": self._cast, "Slice": self._slice, "Concat": self._concat,
            "CumSum": self._cumsum, "GatherND": self._gather_nd, "Neg": self._neg, "Add": self._sum, "Sub": self._sum,
            "Mul": self._mul, "Equal": self._equal, "Not": self._not, "And": self._and, "Or": self._or,
            "GreaterOrEqual": self._compare, "LessOrEqual": self._compare, "Greater": self._compare,
            "Less": self._compare, "BitwiseAnd": self._and, "Where": self._where, "Trilu": self._trilu,
        }  # fmt: skip
        for node in graph:  # in order, so that a question asked later never recurses deep
            if node.op_type in self._rules:
                self.of(node.outputs[0])

    def of(self, value: ir.Value | None) -> Found:
        if value is None:
            return None
        if value not in self._found:
            self._found[value] = None  # what is asked for again on the way is not known
            self._found[value] = self._find(value)
        return self._found[value]

    def _find(self, value: ir.Value) -> Found:
        if value.const_value is not None:
            dtype = value.const_value.dtype
            if dtype.is_integer() or dtype == ir.DataType.BOOL:
                return fit(value.const_value.numpy())
            return fit_choice(value.const_value.numpy()) if dtype in FLOATS else None
        contents = self.symbols.contents(value)
        if contents is not None and len(contents) == 1 and contents[0] is not None:
            return Affine(contents[0], (0,) * self._rank(value))
        if (number := uniform(value)) is not None and value.dtype is not None and value.dtype.is_floating_point():
            return Choice(ALWAYS, number, number)
        node = value.producer()
        rule = self._rules.get(node.op_type) if node is not None and node.domain in ("", "ai.onnx") else None
        if node is None or rule is None or len(node.outputs) != 1:
            return None
        found = rule(node)
        return self._without_single_axes(found, value)

    def _without_single_axes(self, found: Found, value: ir.Value) -> Found:
        """An axis of one element has index 0 alone."""
        if isinstance(found, Choice):
            reduced = self._without_single_axes(found.truth, value)
            return dataclasses.replace(found, truth=reduced) if isinstance(reduced, Truth) else None
        expression = found.expression if isinstance(found, Truth) else found
        dims = self.symbols.dims(value)
        if expression is None or dims is None:
            return found
        widened = expression.widened(len(dims))
        reduced = Affine(expression.offset, tuple(0 if d == 1 else c for c, d in zip(widened, dims, strict=True)))
        return Truth(reduced) if isinstance(found, Truth) else reduced

    def _rank(self, value: ir.Value | None) -> int:
        dims = self.symbols.dims(value)
        return len(dims) if dims is not None else 0

    def _affine(self, value: ir.Value | None) -> Affine | None:
        found = self.of(value)
        return found if isinstance(found, Affine) else None

    def _truth(self, value: ir.Value | None) -> Truth | None:
        found = self.of(value)
        return found if isinstance(found, Truth) else None

    # --- one rule an operator -----------------------------------------------------------------------------------------

    def _range(self, node: ir.Node) -> Found:
        start, delta = self._affine(node.inputs[0]), self._affine(node.inputs[2])
        if start is None or delta is None or not isinstance(delta.offset, int):
            return None
        return Affine(start.offset, (delta.offset,))

    def _first(self, node: ir.Node) -> Found:
        return self.of(node.inputs[0])

    def _moved(self, found: Found, move: Callable[[tuple[int, ...]], tuple[int, ...]], rank: int) -> Found:
        if isinstance(found, Choice):
            truth = self._moved(found.truth, move, rank)
            return dataclasses.replace(found, truth=truth) if isinstance(truth, Truth) else None
        expression = found.expression if isinstance(found, Truth) else found
        if expression is None:
            return None
        moved = Affine(expression.offset, move(expression.widened(rank)))
        return Truth(moved) if isinstance(found, Truth) else moved

    def _unsqueeze(self, node: ir.Node) -> Found:
        axes, dims = self.symbols.contents(node.inputs[1]), self.symbols.dims(node.inputs[0])
        if axes is None or dims is None or not all(isinstance(a, int) for a in axes):
            return None
        rank = len(dims) + len(axes)
        new = {a % rank for a in axes if isinstance(a, int)}

        def move(coefficients: tuple[int, ...]) -> tuple[int, ...]:
            rest = iter(coefficients)
            return tuple(0 if k in new else next(rest) for k in range(rank))

        return self._moved(self.of(node.inputs[0]), move, len(dims))

    def _squeeze(self, node: ir.Node) -> Found:
        dims = self.symbols.dims(node.inputs[0])
        axes = self.symbols.contents(node.inputs[1]) if len(node.inputs) > 1 else None
        if dims is None or axes is None:
            return None
        gone = {a % len(dims) for a in axes if isinstance(a, int)}
        return self._moved(
            self.of(node.inputs[0]), lambda c: tuple(x for k, x in enumerate(c) if k not in gone), len(dims)
        )

    def _expand(self, node: ir.Node) -> Found:
        return self._moved(self.of(node.inputs[0]), lambda c: c, self._rank(node.outputs[0]))

    def _cast(self, node: ir.Node) -> Found:
        found, to = self.of(node.inputs[0]), ir.DataType(node.attributes.get_int("to"))
        if isinstance(found, Choice):
            return self._cast_choice(found, to)
        if isinstance(found, Affine) and to in (ir.DataType.INT64, ir.DataType.INT32):
            return found
        if isinstance(found, Truth):
            if to == ir.DataType.BOOL:
                return found
            if to.is_integer() and (found.always or found.never):
                return Affine(int(found.always))
        return None

    def _cast_choice(self, found: Choice, to: ir.DataType) -> Found:
        if to == ir.DataType.BOOL:
            return self._where_equal(found, 0.0, negate=True)
        if to not in FLOATS:
            return None
        with np.errstate(over="ignore"):
            shown, hidden = (float(np.array(n).astype(to.numpy())) for n in (found.shown, found.hidden))
        return Choice(found.truth, shown, hidden)

    def _where_equal(self, found: Choice, number: float, *, negate: bool = False) -> Truth | None:
        """Where the choice is this number (negate: is not)."""
        first, second = (found.shown == number) != negate, (found.hidden == number) != negate
        if first == second:
            return ALWAYS if first else NEVER
        return found.truth if first else Truth(Affine(-1).plus(found.truth.expression, -1))

    def _where(self, node: ir.Node) -> Found:
        truth, shown, hidden = self._truth(node.inputs[0]), uniform(node.inputs[1]), uniform(node.inputs[2])
        if truth is None or shown is None or hidden is None or self._rank(node.outputs[0]) == 0:
            return None
        return Choice(truth, shown, hidden)

    def _trilu(self, node: ir.Node) -> Found:
        """What one number becomes: 0 above (or, upper, below) the k-th diagonal."""
        number, diagonal = (
            uniform(node.inputs[0]),
            self.symbols.contents(node.inputs[1]) if len(node.inputs) > 1 else (0,),
        )
        rank = self._rank(node.outputs[0])
        if number is None or diagonal is None or not isinstance(diagonal[0], int) or rank < 2:
            return None
        sign = -1 if node.attributes.get_int("upper", True) else 1
        kept = Truth(Affine(sign * diagonal[0], (0,) * (rank - 2) + (sign, -sign)))
        return Choice(kept, number, 0.0)

    def _slice(self, node: ir.Node) -> Found:
        starts = self.symbols.contents(node.inputs[1])
        axes = self.symbols.contents(node.inputs[3]) if len(node.inputs) > 3 else None
        steps = self.symbols.contents(node.inputs[4]) if len(node.inputs) > 4 else (1,)
        whole = self.of(node.inputs[0])
        found = whole.truth if isinstance(whole, Choice) else whole
        expression = found.expression if isinstance(found, Truth) else found
        rank = self._rank(node.inputs[0])
        if expression is None or starts is None or axes is None or steps is None or not rank:
            return None
        coefficients, offset = expression.widened(rank), expression.offset
        for axis, start, step in zip(axes, starts, (*steps, *(1,) * len(axes)), strict=False):
            if not isinstance(axis, int) or step != 1:
                return None
            if coefficients[axis] == 0:
                continue
            if not isinstance(start, int) or start < 0:
                return None
            offset = simplified(offset + coefficients[axis] * start)
        moved = Affine(offset, coefficients)
        if isinstance(whole, Choice):
            return dataclasses.replace(whole, truth=Truth(moved))
        return Truth(moved) if isinstance(found, Truth) else moved

    def _concat(self, node: ir.Node) -> Found:
        """One affine function where each part goes on where the one before it ends."""
        rank = self._rank(node.inputs[0])
        parts = [self._affine(v) for v in node.inputs]
        if not rank or any(p is None for p in parts):
            return None
        axis = node.attributes.get_int("axis") % rank
        joined: Affine | None = None
        length: Dim = 0
        for part, value in zip(parts, node.inputs, strict=True):
            dims = self.symbols.dims(value)
            size = dims[axis] if dims is not None else None
            # Where a part that was cut to one element has none, the tensor it was cut from is empty, as is the rest.
            size = size.limit if isinstance(size, AtMost) and size.limit == 1 else size
            if part is None or size is None or isinstance(size, AtMost):
                return None
            joined = part if joined is None else _continued(joined, length, part, axis, rank)
            if joined is None:
                return None
            length = simplified(length + size)
        return joined

    def _cumsum(self, node: ir.Node) -> Found:
        found = self._affine(node.inputs[0])
        return found if found == Affine(0, found.coefficients if found else ()) and found and found.constant else None

    def _gather_nd(self, node: ir.Node) -> Found:
        data, where = self._affine(node.inputs[0]), node.inputs[1]
        if data is None or node.attributes.get_int("batch_dims", 0) != 0 or self._rank(node.inputs[0]) == 0:
            return None
        coefficients = data.widened(self._rank(node.inputs[0]))
        if not any(coefficients):
            return Affine(data.offset)
        indices = where.producer() if where is not None else None
        if indices is None or indices.op_type != "Concat" or len(indices.inputs) != len(coefficients):
            return None
        result = Affine(data.offset)
        for coefficient, value in zip(coefficients, indices.inputs, strict=True):
            index = self._affine(value)
            dims = self.symbols.dims(value)
            if not coefficient:
                continue
            if index is None or not index.never_negative() or dims is None or dims[-1] != 1:
                return None
            result = result.plus(Affine(index.offset, index.widened(len(dims))[:-1]), coefficient)
        return result

    def _neg(self, node: ir.Node) -> Found:
        found = self._affine(node.inputs[0])
        return None if found is None else Affine(0).plus(found, -1)

    def _sum(self, node: ir.Node) -> Found:
        a, b = self._affine(node.inputs[0]), self._affine(node.inputs[1])
        return None if a is None or b is None else a.plus(b, 1 if node.op_type == "Add" else -1)

    def _mul(self, node: ir.Node) -> Found:
        a, b = self._affine(node.inputs[0]), self._affine(node.inputs[1])
        for one, other in ((a, b), (b, a)):
            if one is not None and other is not None and other.constant and isinstance(other.offset, int):
                return Affine(0).plus(one, other.offset)
        return None

    def _compare(self, node: ir.Node) -> Found:
        a, b = self._affine(node.inputs[0]), self._affine(node.inputs[1])
        if a is None or b is None:
            return None
        difference = a.plus(b, -1) if node.op_type.startswith("Greater") else b.plus(a, -1)
        return Truth(difference if node.op_type.endswith("OrEqual") else difference.plus(Affine(-1)))

    def _equal(self, node: ir.Node) -> Found:
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

    def _not(self, node: ir.Node) -> Found:
        found = self._truth(node.inputs[0])
        return None if found is None else Truth(Affine(-1).plus(found.expression, -1))

    def _and(self, node: ir.Node) -> Found:
        a, b = self._truth(node.inputs[0]), self._truth(node.inputs[1])
        if a is not None and b is not None and (a.always or a == b):
            return b
        return a if a is not None and b is not None and b.always else None

    def _or(self, node: ir.Node) -> Found:
        operands: Sequence[Truth | None] = [self._truth(v) for v in node.inputs]
        return ALWAYS if any(o is not None and o.always for o in operands) else None


def _continued(before: Affine, length: Dim, after: Affine, axis: int, rank: int) -> Affine | None:
    """The function over both parts along `axis`, where `before` has `length` elements; None where it has a kink."""
    a, b = list(before.widened(rank)), list(after.widened(rank))
    if length == 1:
        a[axis] = b[axis]
    if a != b:
        return None
    expected = simplified(before.offset + a[axis] * length)
    return Affine(before.offset, tuple(a)) if expected == after.offset else None

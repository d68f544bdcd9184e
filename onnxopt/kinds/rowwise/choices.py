"""Choices between two values of whole rows: where both are computed alike, the computation of a choice of operands.

    c ? f(x) : f(y) -> f(c ? x : y)        c has one value for a row; f reduces the row

So a kernel of rows that a Concat joins, each normalized with weights of its tensor, reduces every row once.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxopt.program.expressions import COMMUTES, Expr
from onnxopt.program.operators.row_operators import REDUCE


def choice(condition: Expr, a: Expr, b: Expr, leaves: Mapping[int, Expr]) -> Expr | None:
    """`a` where the condition holds, else `b`, with one reduction for each that both have.

    leaves: the values without an instruction, by their ids, which are below 0. None where `a` has no reductions, or
    where they differ from those of `b`.
    """
    choices = _Choices(condition, leaves)
    return choices.of(a, b) if choices.reduces(a.id) else None


class _Choices:
    """Choices under one condition. A pair that was chosen from once is the same value in every place."""

    def __init__(self, condition: Expr, leaves: Mapping[int, Expr]):
        self._condition, self._builder, self._leaves = condition, condition.builder, leaves
        self._chosen: dict[tuple[int, int], Expr | None] = {}
        self._reduces: dict[int, bool] = {}

    def reduces(self, value: int) -> bool:
        """Whether a value depends on a reduction."""
        if value < 0:
            return False
        if value not in self._reduces:
            instruction = self._builder.code[value]
            self._reduces[value] = instruction.op.startswith(REDUCE) or any(map(self.reduces, instruction.args))
        return self._reduces[value]

    def of(self, a: Expr, b: Expr) -> Expr | None:
        """One choice; None where it would reduce rows of both."""
        if a.id == b.id:
            return a
        if (a.id, b.id) not in self._chosen:
            self._chosen[a.id, b.id] = self._alike(a, b) or self._apart(a, b)
        return self._chosen[a.id, b.id]

    def _apart(self, a: Expr, b: Expr) -> Expr | None:
        return None if self.reduces(a.id) or self.reduces(b.id) else self._condition.where(a, b)

    def _alike(self, a: Expr, b: Expr) -> Expr | None:
        """The one instruction of both, of chosen operands; None where the instructions or operands differ."""
        if a.id < 0 or b.id < 0:
            return None
        one, other = self._builder.code[a.id], self._builder.code[b.id]
        if (one.op, one.dtype, one.storage, len(one.args)) != (other.op, other.dtype, other.storage, len(other.args)):
            return None
        if not one.args:
            return None  # two constants
        orders = (other.args, other.args[::-1]) if one.op in COMMUTES else (other.args,)
        for args in orders:
            operands = [self.of(self._value(x), self._value(y)) for x, y in zip(one.args, args, strict=True)]
            if None not in operands:
                exact = a.exact_in if a.exact_in == b.exact_in else None
                chosen = [operand for operand in operands if operand is not None]
                return self._builder.emit(one.op, one.dtype, *chosen, storage=one.storage, exact_in=exact)
        return None

    def _value(self, number: int) -> Expr:
        return self._leaves[number] if number < 0 else self._builder.value(number)

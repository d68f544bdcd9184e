"""Functions of the index that tensors of integers, bools or two numbers hold, and the one that a constant holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxopt.graph.shapes.dims import Dim, Dims, not_negative, simplest

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_LARGEST = 1 << 24  # elements; larger constant masks are not read


@dataclasses.dataclass(frozen=True)
class Affine:
    """offset + sum(coefficients[d] * index[d]); the last coefficient is of the last axis."""

    offset: Dim
    coefficients: Dims = ()

    @property
    def constant(self) -> bool:
        return not any(self.coefficients)

    def plus(self, other: Affine, factor: Dim = 1) -> Affine:
        rank = max(len(self.coefficients), len(other.coefficients))
        a, b = self.widened(rank), other.widened(rank)
        coefficients = tuple(simplest(x + factor * y) for x, y in zip(a, b, strict=True))
        return Affine(simplest(self.offset + factor * other.offset), coefficients)

    def widened(self, rank: int) -> Dims:
        return (0,) * (rank - len(self.coefficients)) + self.coefficients

    def never_negative(self) -> bool:
        """Whether the value is 0 or more at every index; indices are."""
        return isinstance(self.offset, int) and self.offset >= 0 and all(map(not_negative, self.coefficients))

    def follows(self, other: Affine) -> bool:
        """Whether this is at least as large as the other at every index, so not negative where that is not."""
        more = self.plus(other, -1)
        return all(map(not_negative, (more.offset, *more.coefficients)))

    def always_negative(self) -> bool:
        """Whether the value is less than 0 at every index; indices are not."""
        return isinstance(self.offset, int) and self.offset < 0 and all(not_negative(-c) for c in self.coefficients)


@dataclasses.dataclass(frozen=True)
class Truth:
    """True exactly where `expression` is not negative, and none of the `others` is."""

    expression: Affine
    others: tuple[Affine, ...] = ()

    @property
    def expressions(self) -> tuple[Affine, ...]:
        return (self.expression, *self.others)

    @property
    def always(self) -> bool:
        return all(e.never_negative() for e in self.expressions)

    @property
    def never(self) -> bool:
        return any(e.always_negative() for e in self.expressions)

    def negated(self) -> Truth | None:
        """True exactly where this one is false: an integer x is negative where -1 - x is not. None for several."""
        return None if self.others else Truth(Affine(-1).plus(self.expression, -1))

    def implies(self, other: Truth) -> bool:
        """Whether the other is seen to be true wherever this one is."""
        return all(e.never_negative() or any(map(e.follows, self.expressions)) for e in other.expressions)

    def both(self, other: Truth) -> Truth:
        """True exactly where this one and the other are."""
        if self.never or other.never:
            return NEVER
        limits: list[Affine] = []
        for e in (*self.expressions, *other.expressions):
            if not e.never_negative() and not any(map(e.follows, limits)):
                limits = [limit for limit in limits if not limit.follows(e)] + [e]
        return Truth(*_split(tuple(limits))) if limits else ALWAYS


@dataclasses.dataclass(frozen=True)
class Choice:
    """One number (shown) where `truth` holds, and another (hidden) where it does not."""

    truth: Truth
    shown: float
    hidden: float

    @property
    def everywhere(self) -> float | None:
        """The number of all elements, None where there are two."""
        if self.truth.always or self.shown == self.hidden:
            return self.shown
        return self.hidden if self.truth.never else None


ALWAYS, NEVER = Truth(Affine(0)), Truth(Affine(-1))
IndexFunction = Affine | Truth | Choice


def mapped(function: IndexFunction | None, change: Callable[[Affine], Affine | None]) -> IndexFunction | None:
    """The function with all of its affine functions changed, None where one of them becomes None."""
    if function is None:
        return None
    if isinstance(function, Affine):
        return change(function)
    if isinstance(function, Choice):
        truth = mapped(function.truth, change)
        return dataclasses.replace(function, truth=truth) if isinstance(truth, Truth) else None
    changed = [e for e in map(change, function.expressions) if e is not None]
    return Truth(*_split(tuple(changed))) if len(changed) == len(function.expressions) else None


def _split(expressions: tuple[Affine, ...]) -> tuple[Affine, tuple[Affine, ...]]:
    return expressions[0], expressions[1:]


def fit(array: np.ndarray) -> IndexFunction | None:
    """The function that a constant of integers or bools follows at every element, None where it follows none."""
    if array.size == 0 or array.size > _LARGEST:
        return None
    if array.dtype == np.bool_:
        return _fit_truth(array)
    corner = (0,) * array.ndim
    offset = int(array[corner])
    steps = []
    for axis, length in enumerate(array.shape):
        neighbour = tuple(int(a == axis) for a in range(array.ndim))
        steps.append(int(array[neighbour]) - offset if length > 1 else 0)
    expected = offset + sum(
        step * np.arange(length).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        for axis, (step, length) in enumerate(zip(steps, array.shape, strict=True))
    )
    return Affine(offset, tuple(steps)) if bool((array == expected).all()) else None


def _fit_truth(array: np.ndarray) -> Truth | None:
    if array.all():
        return ALWAYS
    if not array.any():
        return NEVER
    if array.ndim < 2:
        return None
    rows, columns = array.shape[-2:]
    first = array.reshape(-1, rows, columns)[0]
    begins, ends = np.argmax(first, axis=1), columns - 1 - np.argmax(first[:, ::-1], axis=1)
    row, wide = np.arange(rows), (0,) * (array.ndim - 2)
    limits = []  # of columns, at the end of a row and at its beginning
    if (sliced := ends < columns - 1).any():
        limits.append(Affine(int((ends - row)[sliced][0]), (*wide, 1, -1)))
    if (sliced := begins > 0).any():
        limits.append(Affine(int((row - begins)[sliced][0]), (*wide, -1, 1)))
    column = np.arange(columns)
    shown = np.ones((rows, columns), np.bool_)
    for limit in limits:
        *_, row_step, column_step = limit.coefficients
        shown &= limit.offset + row_step * row[:, None] + column_step * column >= 0
    return Truth(*_split(tuple(limits))) if limits and bool((array == shown).all()) else None


def fit_choice(array: np.ndarray) -> Choice | None:
    """A constant of two numbers, one of them 0, as a choice between them; None where the constant is no such choice."""
    if array.size == 0 or array.size > _LARGEST:
        return None
    zero = array == 0
    others = array[~zero]
    if others.size == 0:
        return Choice(ALWAYS, 0.0, 0.0)
    hidden = float(others.flat[0])
    truth = _fit_truth(zero) if bool((others == hidden).all()) else None
    return Choice(truth, 0.0, hidden) if truth is not None else None

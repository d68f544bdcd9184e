"""Extents: the dims, divisors and strides of index maps. Each is a number times symbolic dims.

A sum of dims, such as the length of a Concat along a symbolic axis, is no extent. Offsets and the bounds of parts are
sums; callers refuse what needs a sum as a dim, a divisor or a stride.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Extent:
    """factor * product of symbols. symbols: names of dims, sorted; every dim is at least 1 at run time."""

    factor: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: Extent | int) -> Extent:
        if isinstance(other, int):
            return Extent(self.factor * other, self.symbols if other else ())
        return Extent(self.factor * other.factor, tuple(sorted(self.symbols + other.symbols)))

    @property
    def number(self) -> int | None:
        """The extent as a number; None where it depends on symbols."""
        return None if self.symbols else self.factor

    def over(self, other: Extent) -> Extent | None:
        """self / other where the division is exact for all sizes of the symbols, else None."""
        if other.factor == 0 or self.factor % other.factor:
            return None
        rest = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in rest:
                return None
            rest.remove(symbol)
        return Extent(self.factor // other.factor, tuple(rest))

    def at_most(self, other: Extent) -> bool:
        """Whether self <= other holds for all sizes of the symbols."""
        left, right = list(self.symbols), list(other.symbols)
        for symbol in self.symbols:
            if symbol in right:
                left.remove(symbol)
                right.remove(symbol)
        return not left and self.factor <= other.factor

    def value(self, symbols: Mapping[str, int]) -> int:
        """The extent as a number for these sizes of the symbols."""
        return self.factor * math.prod(symbols[s] for s in self.symbols)


ONE = Extent(1)


def extent(dim: int | str) -> Extent:
    """The extent of one dim."""
    return Extent(dim) if isinstance(dim, int) else Extent(1, (dim,))


def product(extents: Iterable[Extent]) -> Extent:
    result = ONE
    for e in extents:
        result = result * e
    return result


@dataclasses.dataclass(frozen=True)
class Sum:
    """A sum of extents, whose factors may be negative. parts: by symbols, none of which stands twice; none is 0."""

    parts: tuple[Extent, ...] = ()

    def __add__(self, other: Sum | Extent | int) -> Sum:
        factors = {e.symbols: e.factor for e in self.parts}
        for e in total(other).parts:
            factors[e.symbols] = factors.get(e.symbols, 0) + e.factor
        return Sum(tuple(Extent(factor, symbols) for symbols, factor in sorted(factors.items()) if factor))

    def __mul__(self, other: int) -> Sum:
        return Sum(tuple(e * other for e in self.parts) if other else ())

    def __sub__(self, other: Sum | Extent | int) -> Sum:
        return self + total(other) * -1

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def number(self) -> int | None:
        """The sum as a number; None where it depends on symbols."""
        return None if any(e.symbols for e in self.parts) else sum(e.factor for e in self.parts)

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s for e in self.parts for s in e.symbols))

    def not_negative(self) -> bool:
        """Whether the sum is 0 or more for all sizes of the symbols: it is smallest where each of them is 1."""
        return all(e.factor > 0 or not e.symbols for e in self.parts) and sum(e.factor for e in self.parts) >= 0


ZERO = Sum()


def total(summand: Sum | Extent | int) -> Sum:
    """A number or an extent as a sum."""
    if isinstance(summand, Sum):
        return summand
    summand = Extent(summand) if isinstance(summand, int) else summand
    return Sum((summand,) if summand.factor else ())

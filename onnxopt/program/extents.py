"""Extents: the dims, divisors and strides of index maps, each a number times symbolic dims.

A sum of dims (the length of a Concat over a symbolic axis) is no extent; what would need one is refused by its caller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Extent:
    """factor * product of symbols; symbols are sorted names of dims, each at least 1 wherever it is used."""

    factor: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: Extent | int) -> Extent:
        if isinstance(other, int):
            return Extent(self.factor * other, self.symbols if other else ())
        return Extent(self.factor * other.factor, tuple(sorted(self.symbols + other.symbols)))

    @property
    def number(self) -> int | None:
        """The extent where it is a number."""
        return None if self.symbols else self.factor

    def over(self, other: Extent) -> Extent | None:
        """self / other where that is exact whatever the symbols are, else None."""
        if other.factor == 0 or self.factor % other.factor:
            return None
        left = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in left:
                return None
            left.remove(symbol)
        return Extent(self.factor // other.factor, tuple(left))

    def at_most(self, other: Extent) -> bool:
        """Whether self <= other is certain."""
        left, right = list(self.symbols), list(other.symbols)
        for symbol in self.symbols:
            if symbol in right:
                left.remove(symbol)
                right.remove(symbol)
        return not left and self.factor <= other.factor

    def value(self, symbols: Mapping[str, int]) -> int:
        """The number it is for these dims."""
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

"""Index maps: which element of a tensor each element of a kernel's domain needs, as affine functions of digits.

A kernel runs over a flat domain. Its index is written in a mixed radix: digits, outermost first, whose extents multiply
to the size of the domain. A map states every coordinate of a tensor as offset + sum(coefficient * digit).

Index operations are undone one by one, from the kernel's output back to its inputs: each turns the map of its result
into the map of its operand. A reshape that cuts through a digit splits the digit into two. A reshape that cuts a dim at
no boundary of another raises NotAffine. A guard is a linear form of the digits and the range of values for which the
element exists (Concat, Pad).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxopt.program.extents import ONE, ZERO, Extent, Sum, product, total

_SPLITS_A_DIM = "A Reshape splits a dim at a point that is not a boundary of the other shape"
_NO_MATCH = "The dims before and after a Reshape cannot be matched to each other"


class NotAffine(ValueError):
    """An index operation that no index map describes. The message is the reason of a refusal."""


@dataclasses.dataclass(frozen=True)
class Linear:
    """offset + sum of coefficient * digit. terms: pairs (digit, coefficient), in the order of the digits."""

    offset: Sum = ZERO
    terms: tuple[tuple[int, Extent], ...] = ()

    def shifted(self, offset: Sum | Extent | int, step: int = 1) -> Linear:
        """offset + step * self."""
        return Linear(self.offset * step + offset, tuple((k, c * step) for k, c in self.terms))


@dataclasses.dataclass(frozen=True)
class Guard:
    """The condition low <= form < high."""

    form: Linear
    low: Sum
    high: Sum


@dataclasses.dataclass(frozen=True)
class Map:
    """Where each element of the domain lies in a tensor.

    digits: extents of the digits, outermost first. coordinates: one for each dim of the tensor. guards: the map holds
    where all of them do.
    """

    digits: tuple[Extent, ...]
    coordinates: tuple[Linear, ...]
    guards: tuple[Guard, ...] = ()

    def with_coordinates(self, coordinates: Sequence[Linear]) -> Map:
        return Map(self.digits, tuple(coordinates), self.guards)

    def guarded(self, form: Linear, low: Sum, high: Sum) -> Map | None:
        """This map with the guard low <= form < high; unchanged where that always holds, None where it never does."""
        first, last = self.bounds(form)
        for guard in (g for g in self.guards if g.form == form):  # inside a part, the form stays in the part's range
            first = guard.low if (guard.low - first).not_negative() else first
            last = guard.high - 1 if (last - (guard.high - 1)).not_negative() else last
        if (low - last - 1).not_negative() or (first - high).not_negative():
            return None
        if (first - low).not_negative() and (high - 1 - last).not_negative():
            return self
        return dataclasses.replace(self, guards=(*self.guards, Guard(form, low, high)))

    def bounds(self, form: Linear) -> tuple[Sum, Sum]:
        """The smallest and the greatest value of a form."""
        low = high = form.offset
        for digit, coefficient in form.terms:
            reach = total(coefficient * self.digits[digit]) - coefficient
            low, high = (low, high + reach) if coefficient.factor > 0 else (low + reach, high)
        return low, high

    def is_inside(self, form: Linear, dim: Extent) -> bool:
        """Whether a form is known to be in [0, dim) for all sizes of the symbols."""
        low, high = self.bounds(form)
        return low.not_negative() and (total(dim) - 1 - high).not_negative()

    def split(self, digit: int, inner: Extent) -> Map:
        """The same map with one digit written as two. inner: extent of the inner digit; it must divide the digit's."""
        outer = self.digits[digit].over(inner)
        if outer is None:
            raise NotAffine(_SPLITS_A_DIM)
        digits = (*self.digits[:digit], outer, inner, *self.digits[digit + 1 :])

        def renumbered(form: Linear) -> Linear:
            terms: list[tuple[int, Extent]] = []
            for k, c in form.terms:
                terms += [(k, c * inner), (k + 1, c)] if k == digit else [(k + (k > digit), c)]
            return Linear(form.offset, tuple(terms))

        return Map(
            digits,
            tuple(renumbered(c) for c in self.coordinates),
            tuple(Guard(renumbered(g.form), g.low, g.high) for g in self.guards),
        )


def identity(dims: Sequence[Extent]) -> Map:
    """The map of a tensor whose flat index is that of the domain."""
    digits = tuple(d for d in dims if d != ONE)
    coordinates, k = [], 0
    for d in dims:
        coordinates.append(Linear() if d == ONE else Linear(terms=((k, ONE),)))
        k += d != ONE
    return Map(digits, tuple(coordinates))


def reshape(result: Map, result_dims: Sequence[Extent], dims: Sequence[Extent]) -> Map:
    """The map of a reshape's operand, of shape `dims`, from the map of its result, of shape `result_dims`."""
    coordinates: dict[int, Linear] = {}  # of the operand, by dim
    inside = [k for k, d in enumerate(dims) if d != ONE]
    outside = [k for k, d in enumerate(result_dims) if d != ONE]
    for group, result_group in _groups(inside, outside, dims, result_dims):
        if len(group) == len(result_group) == 1:
            coordinates[group[0]] = result.coordinates[result_group[0]]
            continue
        # Splitting a digit renumbers the digits of the coordinates that are known already.
        result, coordinates = _regroup(result, result_group, result_dims, group, dims, coordinates)
    return result.with_coordinates([coordinates.get(k, Linear()) for k in range(len(dims))])


def _groups(
    inside: list[int], outside: list[int], dims: Sequence[Extent], result_dims: Sequence[Extent]
) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of dims on both sides that have the same size."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(inside) and j < len(outside):
        left, right = [inside[i]], [outside[j]]
        i, j = i + 1, j + 1
        while (a := product(dims[k] for k in left)) != (b := product(result_dims[k] for k in right)):
            grow_left = a.at_most(b) if a.at_most(b) or b.at_most(a) else j >= len(outside)
            if grow_left and i < len(inside):
                left.append(inside[i])
                i += 1
            elif j < len(outside):
                right.append(outside[j])
                j += 1
            else:
                raise NotAffine(_NO_MATCH)
        groups.append((left, right))
    if i < len(inside) or j < len(outside):
        raise NotAffine(_NO_MATCH)
    return groups


def _regroup(
    result: Map, result_group: Sequence[int], result_dims: Sequence[Extent], group: Sequence[int],
    dims: Sequence[Extent], regrouped: dict[int, Linear],
) -> tuple[Map, dict[int, Linear]]:  # fmt: skip
    """The result's map and the known coordinates of the operand, by dim, after those of the dims `group` were added.

    The dims `group` of the operand and `result_group` of the result have the same product of sizes.
    """
    current = Map(result.digits, (*result.coordinates, *regrouped.values()), result.guards)
    while True:
        flat_offset, flat = _flatten(current, result_group, result_dims)
        spread = _spread(current, flat_offset, flat, [dims[k] for k in group])
        if isinstance(spread, tuple):
            current = current.split(*spread)
            continue
        rank = len(result.coordinates)
        renumbered = dict(zip(regrouped, current.coordinates[rank:], strict=True))
        renumbered.update(zip(group, spread, strict=True))
        return Map(current.digits, current.coordinates[:rank], current.guards), renumbered


def _flatten(
    current: Map, group: Sequence[int], dims: Sequence[Extent]
) -> tuple[list[tuple[int, Extent]], list[tuple[int, Extent]]]:
    """The row-major index over these dims: offsets as (number, stride) and terms as (digit, coefficient)."""
    offsets, terms, stride = [], [], ONE
    for k in reversed(group):
        coordinate = current.coordinates[k]
        offsets += [(part.factor, Extent(1, part.symbols) * stride) for part in coordinate.offset.parts]
        terms += [(digit, c * stride) for digit, c in coordinate.terms]
        stride = stride * dims[k]
    return offsets, terms


def _spread(
    current: Map, offsets: list[tuple[int, Extent]], terms: list[tuple[int, Extent]], dims: Sequence[Extent]
) -> list[Linear] | tuple[int, Extent]:
    """A flat index as one linear form a dim, or the digit that must be split first and the extent of its inner part."""
    strides = [product(dims[k + 1 :]) for k in range(len(dims))]
    parts: list[dict[int, Extent]] = [{} for _ in dims]
    for digit, coefficient in terms:
        k = _dim_of(coefficient, strides)
        if k > 0:
            reach = coefficient if coefficient.factor > 0 else coefficient * -1
            if not (reach * current.digits[digit]).at_most(strides[k - 1]):
                inner = strides[k - 1].over(reach)
                if inner is None or coefficient.factor < 0:
                    raise NotAffine(_SPLITS_A_DIM)
                return digit, inner
        over = coefficient.over(strides[k])
        if over is None:
            raise NotAffine(_SPLITS_A_DIM)
        parts[k][digit] = _sum(parts[k].get(digit), over)
    forms = [
        Linear(offset, tuple(sorted(part.items())))
        for offset, part in zip(_spread_offsets(offsets, strides, dims), parts, strict=True)
    ]
    for form, dim in zip(forms[1:], dims[1:], strict=True):
        if not _stays_inside(current, form, dim):
            raise NotAffine("A Reshape merges dims, and only a part of them is read")
    return forms


def _sum(a: Extent | None, b: Extent) -> Extent:
    if a is None:
        return b
    if a.symbols != b.symbols:
        raise NotAffine("The index of an element depends on a sum of different symbolic dims")
    return Extent(a.factor + b.factor, a.symbols)


def _dim_of(coefficient: Extent, strides: Sequence[Extent]) -> int:
    """The outermost dim whose stride is at most this coefficient, so that no dim outside of it changes."""
    size = coefficient if coefficient.factor > 0 else coefficient * -1
    for k, stride in enumerate(strides):
        if stride.at_most(size):
            return k
    raise NotAffine("The symbolic dims before and after a Reshape cannot be matched to each other")


def _spread_offsets(offsets: list[tuple[int, Extent]], strides: Sequence[Extent], dims: Sequence[Extent]) -> list[Sum]:
    spread = [ZERO] * len(dims)
    numbers = [n * s.factor for n, s in offsets if not s.symbols]
    symbolic = [(n, s) for n, s in offsets if s.symbols]
    for n, s in symbolic:
        k = _dim_of(s, strides)
        over = s.over(strides[k])
        if over is None:
            raise NotAffine(_SPLITS_A_DIM)
        spread[k] += over * n
    total = sum(numbers)
    for k, stride in enumerate(strides):
        if total and stride.number is not None:
            steps = total // stride.number
            spread[k] += steps
            total -= steps * stride.number
    return spread


def _stays_inside(current: Map, form: Linear, dim: Extent) -> bool:
    """Whether a form lies in [0, dim) for all sizes of the symbols."""
    if current.is_inside(form, dim):
        return True
    if form.offset or any(c.factor < 0 for _, c in form.terms):
        return False
    reach = ONE  # one more than the greatest value, as in a mixed radix
    for digit, coefficient in sorted(form.terms, key=lambda t: (len(t[1].symbols), t[1].factor)):
        if not reach.at_most(coefficient):
            return False
        reach = coefficient * current.digits[digit]
    return reach.at_most(dim)

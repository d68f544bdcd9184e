"""Indexing: how a kernel with index operations reads its inputs, in the form of kernels.json.

For element i of the domain, an access reads the element of its input at position
    offset + sum over its terms of ((i / div) mod mod) * stride
and, where it has a lookup, as many strides farther as a value of the program says (Gather).
Dims may be symbolic. The library then computes the numbers from the inputs' shapes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from onnxopt.program.extents import Extent, Sum, total

MAX_TERMS = 6  # of one access or condition: a kernel's parameters hold no more (cuda_kernels/device/abi.h)
MAX_CONDITIONS = 8
INDEX_DTYPES = ("int32", "int64")


@dataclasses.dataclass(frozen=True)
class Term:
    """((i / div) mod mod) * stride. The stride may be negative."""

    div: Extent
    mod: Extent
    stride: Extent


@dataclasses.dataclass(frozen=True)
class Lookup:
    """index * stride, for an index that counts from the end where it is below 0.

    index: id of a value of the program, of which nothing is looked up itself. size: of the dim that is indexed; what is
    read is 0 where an index lies outside of it.
    """

    index: int
    size: Extent
    stride: Extent


@dataclasses.dataclass(frozen=True)
class Access:
    """One way in which the kernel reads one input.

    offset: extents whose sum is the offset. terms: from the innermost dim outwards. guards: positions of the conditions
    under which the access is read; the value does not matter where one of them does not hold. lookup: of an access with
    fewer than MAX_TERMS terms.
    """

    input: int
    offset: tuple[Extent, ...]
    terms: tuple[Term, ...]
    guards: tuple[int, ...] = ()
    lookup: Lookup | None = None


@dataclasses.dataclass(frozen=True)
class Condition:
    """Whether low <= offset + sum of the terms < high."""

    offset: int
    terms: tuple[Term, ...]
    low: Sum
    high: Sum

    def is_below(self) -> bool:
        """Whether the sum is below `high` for every element, as where the last part of a Concat begins at `low`."""
        greatest = total(self.offset)
        for term in self.terms:
            if term.stride.factor > 0:
                greatest = greatest + term.stride * term.mod - term.stride
        return (self.high - 1 - greatest).not_negative()


@dataclasses.dataclass(frozen=True)
class Indexing:
    """How a kernel reads its inputs.

    dims: of every input. shapes: of every output; all outputs have the same number of elements. symbols: for each
    symbol its name, and an input and an axis whose size is a multiple of it and depends on no other one.
    """

    accesses: tuple[Access, ...]
    conditions: tuple[Condition, ...]
    dims: tuple[tuple[Extent, ...], ...]
    shapes: tuple[tuple[Extent, ...], ...]
    symbols: tuple[tuple[str, int, int], ...]

    @property
    def forms(self) -> tuple[tuple[Term, ...], ...]:
        """The terms of every access, then those of every condition."""
        return (*(a.terms for a in self.accesses), *(c.terms for c in self.conditions))

    @functools.cached_property
    def leaders(self) -> tuple[int, ...]:
        """For each access the first access of its group.

        One load serves a group. Its accesses read one input with the same terms and different offsets, and at any index
        the guards of at most one of them hold. So it is for parts of a Concat that were sliced from one tensor.
        """
        groups: list[list[int]] = []
        for k, access in enumerate(self.accesses):
            group = next((g for g in groups if all(self._excludes(access, self.accesses[m]) for m in g)), None)
            if group is None:
                groups.append([k])
            else:
                group.append(k)
        return tuple(next(g[0] for g in groups if k in g) for k in range(len(self.accesses)))

    def _excludes(self, a: Access, b: Access) -> bool:
        """Whether two accesses differ in their offset alone and have guards that never hold together."""
        if a.input != b.input or a.terms != b.terms or a.lookup or b.lookup:
            return False
        pairs = ((self.conditions[g], self.conditions[h]) for g in a.guards for h in b.guards)
        return any(
            one.terms == other.terms
            and one.offset == other.offset
            and ((other.low - one.high).not_negative() or (one.low - other.high).not_negative())
            for one, other in pairs
        )

    @property
    def lookups(self) -> tuple[tuple[int, Lookup], ...]:
        """(access, its lookup) for every access that has one."""
        return tuple((k, a.lookup) for k, a in enumerate(self.accesses) if a.lookup is not None)

    def renumbered(self, ids: Mapping[int, int]) -> Indexing:
        """The same with other ids of the values that are indices. ids: new ones by the old."""
        accesses = list(self.accesses)
        for k, lookup in self.lookups:
            accesses[k] = dataclasses.replace(accesses[k], lookup=dataclasses.replace(lookup, index=ids[lookup.index]))
        return dataclasses.replace(self, accesses=tuple(accesses))

    @property
    def _bounds(self) -> list[Extent]:
        return [e for c in self.conditions for bound in (c.low, c.high) for e in bound.parts]

    @property
    def _looked_up(self) -> list[Extent]:
        return [e for _, lookup in self.lookups for e in (lookup.size, lookup.stride)]

    def symbols_used(self) -> set[str]:
        """The symbols on which an offset, a term or a shape depends."""
        terms = [t for form in self.forms for t in form]
        used = [e for dims in self.shapes for e in dims] + [e for a in self.accesses for e in a.offset] + self._bounds
        used += self._looked_up
        return {s for e in (*used, *(e for t in terms for e in (t.div, t.mod, t.stride))) for s in e.symbols}

    def verify(self, inputs: int, outputs: int) -> None:
        """Raise ValueError naming the part that breaks a rule of this module. inputs, outputs: their numbers."""
        if len(self.dims) != inputs or len(self.shapes) != outputs:
            raise ValueError("index: dims or shapes do not match the inputs or outputs")
        names = {name for name, _, _ in self.symbols}
        if any(not 0 <= k < inputs or not 0 <= axis < len(self.dims[k]) for _, k, axis in self.symbols):
            raise ValueError("index: a symbol is in no input")
        used = [e for dims in (*self.dims, *self.shapes) for e in dims]
        for a in self.accesses:
            if not 0 <= a.input < inputs or len(a.terms) > MAX_TERMS:
                raise ValueError("index: an access reads no input, or has too many terms")
            if any(not 0 <= g < len(self.conditions) for g in a.guards):
                raise ValueError("index: an access has a guard that is not there")
            used += a.offset
        for k, lookup in self.lookups:
            if lookup.size.factor < 1 or lookup.stride.factor < 1:
                raise ValueError("index: a lookup is less than 1")
            if len(self.accesses[k].terms) == MAX_TERMS:
                raise ValueError("index: an access with a lookup has too many terms")
        used += self._looked_up
        used += [e for terms in self.forms for t in terms for e in (t.div, t.mod, t.stride)] + self._bounds
        if len(self.conditions) > MAX_CONDITIONS or any(len(c.terms) > MAX_TERMS for c in self.conditions):
            raise ValueError("index: too many conditions, or too many terms")
        if unknown := {s for e in used for s in e.symbols} - names:
            raise ValueError(f"index: no input has a dim of size {', '.join(f'`{s}`' for s in sorted(unknown))}")

    def number(self, e: Extent) -> int | list[int]:
        """An extent in the form of kernels.json: a number, or [factor, symbol, ...] with symbols by position."""
        position = {name: k for k, (name, _, _) in enumerate(self.symbols)}
        return e.factor if not e.symbols else [e.factor, *(position[s] for s in e.symbols)]

    @property
    def guards(self) -> tuple[int, ...]:
        """For every access the conditions that must hold, as a bit mask."""
        return tuple(sum(1 << g for g in a.guards) for a in self.accesses)

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        number = self.number

        def rows(terms: tuple[Term, ...]) -> list[Any]:
            return [[number(t.div), number(t.mod), number(t.stride)] for t in terms]

        def looked_up(lookup: Lookup) -> list[Any]:
            return [lookup.index, number(lookup.size), number(lookup.stride)]

        def summands(bound: Sum) -> list[Any]:
            return [number(e) for e in bound.parts]

        return {
            "symbols": [[k, axis] for _, k, axis in self.symbols],
            "dims": [[number(d) for d in dims] for dims in self.dims],
            "shapes": [[number(d) for d in dims] for dims in self.shapes],
            "accesses": [
                {
                    "input": a.input,
                    "offset": [number(e) for e in a.offset],
                    "terms": rows(a.terms),
                    "guards": list(a.guards),
                }
                | ({} if a.lookup is None else {"lookup": looked_up(a.lookup)})
                for a in self.accesses
            ],
            "conditions": [
                {"offset": c.offset, "terms": rows(c.terms), "low": summands(c.low), "high": summands(c.high)}
                for c in self.conditions
            ],
        }

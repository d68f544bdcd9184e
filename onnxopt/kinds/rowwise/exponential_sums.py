"""Which values of a rowwise program are sums of exponentials less their maximum: 1 at least, and divided by often."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from onnxopt.program.rowwise import GIVEN, Piece, RowProgram


def exponential_sums(program: RowProgram) -> frozenset[int]:
    """The slots of float32 sums of exp(x - m), where m is the maximum of x: the maximum's exponential is 1.

    They are 1 at least and finite, or not a number.
    """
    found: set[int] = set()
    most: dict[Hashable, int] = {}  # what the maximum is taken of -> its slot
    slot = len(program.leaves) + len(GIVEN)
    for stage in program.stages:
        for n, reduction in enumerate(stage.reductions):
            x = _meaning(stage.element, n)
            if reduction == "max":
                most[x] = slot + n
            if reduction == "sum" and any(x == ("exp", ("sub", of, m)) for of, m in most.items()):
                found.add(slot + n)
        slot += len(stage.reductions) + (len(stage.row.program.outputs) if stage.row else 0)
    return frozenset(found)


def _meaning(piece: Piece, result: int) -> Hashable:
    """A result as an expression over slots: equal ones are the same function of them."""
    known: list[Hashable] = list(piece.reads)
    for i in piece.program.code:
        args = tuple(known[a] for a in i.args)
        plain = i.value is None and i.storage is None and i.dtype == "float32"
        known.append((i.op, *args) if plain else (dataclasses.replace(i, args=()), *args))
    return known[piece.program.results[result]]

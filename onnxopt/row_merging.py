"""Pairs of a rowwise program's stages that threads can reduce at once (cuda_kernels/row_merged.cuh).

    sum of x; sum of (x - mean)^2, mean being sum / length      -> Moments
    maximum of x; sum of exp(x - maximum)                       -> Exponentials
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from onnxopt.row_program import GIVEN, Piece, RowProgram

_LENGTH = GIVEN.index("float32")


@dataclasses.dataclass(frozen=True)
class MergedStage:
    """Stages `first` and the one after it. kind: a template of row_merged.cuh. center: slot of the row value that the
    second one centers elements on."""

    kind: str
    first: int
    center: int


def merged(program: RowProgram) -> tuple[int | MergedStage, ...]:
    """The program's stages, by their numbers or merged with the next."""
    found: list[int | MergedStage] = []
    k = 0
    while k < len(program.stages):
        pair = _merged(program, k)
        found.append(k if pair is None else pair)
        k += 1 if pair is None else 2
    return tuple(found)


def exponential_sums(program: RowProgram) -> frozenset[int]:
    """The slots of sums of exponentials less their maximum: 1 at least, as the maximum's is 1, or not a number."""
    pairs = [s for s in merged(program) if isinstance(s, MergedStage) and s.kind == "Exponentials"]
    return frozenset(_first_slot(program, pair.first + 1) for pair in pairs)


def _merged(program: RowProgram, k: int) -> MergedStage | None:
    if k + 1 == len(program.stages):
        return None
    first, second = program.stages[k], program.stages[k + 1]
    pieces = (first.element, second.element)
    if any(p.program.outputs != ("float32",) for p in pieces) or second.reductions != ("sum",):
        return None
    x, summed = (_meaning(p) for p in pieces)
    reduced = _first_slot(program, k)
    if first.reductions == ("max",):
        return MergedStage("Exponentials", k, reduced) if summed == ("exp", ("sub", x, reduced)) else None
    if first.reductions != ("sum",) or first.row is None:
        return None
    mean = ("div", reduced, len(program.leaves) + _LENGTH)
    for n in range(len(first.row.program.results)):
        centered = ("sub", x, reduced + 1 + n)
        if summed == ("mul", centered, centered) and _meaning(first.row, n) == mean:
            return MergedStage("Moments", k, reduced + 1 + n)
    return None


def _first_slot(program: RowProgram, k: int) -> int:
    """The slot of the first value that stage k reduces."""
    before = program.stages[:k]
    made = sum(len(s.reductions) + (len(s.row.program.outputs) if s.row else 0) for s in before)
    return len(program.leaves) + len(GIVEN) + made


def _meaning(piece: Piece, result: int = 0) -> Hashable:
    """A result as an expression over slots: equal ones are the same function of them."""
    known: list[Hashable] = list(piece.reads)
    for i in piece.program.code:
        args = tuple(known[a] for a in i.args)
        plain = i.value is None and i.storage is None and i.dtype == "float32"
        known.append((i.op, *args) if plain else (dataclasses.replace(i, args=()), *args))
    return known[piece.program.results[result]]

"""Finds sums of exp(x - max(x)) in a rowwise program. Such a sum is at least 1, so that divisions by it are cheaper."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from onnxopt.program.rowwise import ROW_INPUTS, Piece, RowProgram


def exponential_sums(program: RowProgram) -> frozenset[int]:
    """The slots of float32 sums of exp(x - m), where m is the maximum of x.

    The maximum contributes exp(0) = 1, so a sum is finite and at least 1, or NaN.
    """
    sums: set[int] = set()
    maxima: dict[Hashable, int] = {}  # expression -> slot of its maximum
    slot = len(program.leaves) + len(ROW_INPUTS)
    for stage in program.stages:
        for n, reduction in enumerate(stage.reductions):
            x = _meaning(stage.element, n)
            if reduction == "max":
                maxima[x] = slot + n
            if reduction == "sum" and any(x == ("exp", ("sub", of, m)) for of, m in maxima.items()):
                sums.add(slot + n)
        slot += len(stage.reductions) + (len(stage.row.program.outputs) if stage.row else 0)
    return frozenset(sums)


def _meaning(piece: Piece, result: int) -> Hashable:
    """A result as an expression over slots. Equal expressions are equal functions of the slots."""
    meanings: list[Hashable] = list(piece.reads)
    for i in piece.program.code:
        args = tuple(meanings[a] for a in i.args)
        plain = i.value is None and i.storage is None and i.dtype == "float32"
        meanings.append((i.op, *args) if plain else (dataclasses.replace(i, args=()), *args))
    return meanings[piece.program.results[result]]

"""Mutants of programs: of what the library's CPU kernels interpret, and CUDA text is generated from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from onnxopt.fusion.kernel import Meaning
from onnxopt.program.pointwise import Instruction
from tests.mutation.faults import WRONG_BY

_ORDERED = frozenset({"sub", "div", "pow", "lt", "le", "mod", "fmod"})
_FLOATS = frozenset({"float32", "float64"})


@dataclasses.dataclass(frozen=True)
class ProgramMutant:
    """A program with one fault. of: its class. place: in the program."""

    of: str
    place: str
    meaning: Meaning


def of_meaning(meaning: Meaning) -> Iterator[ProgramMutant]:
    """All mutants that are programs by the rules of program/."""
    for place, part in _parts(meaning, ""):
        for of, changed in _changed(part):
            mutant: Any = _with(meaning, part, changed)
            with contextlib.suppress(ValueError):
                mutant.verify()
                yield ProgramMutant(of, place, mutant)


def _parts(part: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every dataclass of a program, the program itself included, with its place."""
    if isinstance(part, tuple):
        for k, each in enumerate(part):
            yield from _parts(each, f"{place} {k}")
    elif dataclasses.is_dataclass(part):
        yield place.strip(), part
        for field in dataclasses.fields(part):
            yield from _parts(getattr(part, field.name), f"{place} {field.name}")


def _with(whole: Any, part: Any, changed: Any) -> Any:
    """The whole with one part of it, which is known by identity, changed."""
    if whole is part:
        return changed
    if isinstance(whole, tuple) and type(whole) is tuple:
        return tuple(_with(each, part, changed) for each in whole)
    if not dataclasses.is_dataclass(whole) or isinstance(whole, type):
        return whole
    fields = {f.name: getattr(whole, f.name) for f in dataclasses.fields(whole) if f.init}
    replaced = {name: _with(value, part, changed) for name, value in fields.items()}
    return dataclasses.replace(whole, **{k: v for k, v in replaced.items() if v is not fields[k]})


def _changed(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, Instruction):
        yield from _instructions(part)
        return
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.init and isinstance(value, float) and value and math.isfinite(value):
            for of, factor in WRONG_BY.items():
                yield of, dataclasses.replace(part, **{field.name: value * factor})


def _instructions(it: Instruction) -> Iterator[tuple[str, Instruction]]:
    if isinstance(it.value, float) and it.value and math.isfinite(it.value):
        for of, factor in WRONG_BY.items():
            yield of, dataclasses.replace(it, value=it.value * factor)
    if it.op in _ORDERED and it.args[0] != it.args[1]:
        yield "swapped operands", dataclasses.replace(it, args=(it.args[1], it.args[0], *it.args[2:]))
    if it.op == "select" and it.args[1] != it.args[2]:
        yield "swapped operands", dataclasses.replace(it, args=(it.args[0], it.args[2], it.args[1]))
    if it.dtype in _FLOATS and it.args and it.op not in ("const", "cast", "select", "narrow"):
        for kept in dict.fromkeys(it.args):  # max(a, a) is a
            yield "a step left out", dataclasses.replace(it, op="max", args=(kept, kept))

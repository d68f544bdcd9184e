"""The memory layout of the accesses of a rowwise kernel with index operations, relative to the kernel's rows."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.kinds.pointwise.access_modes import Mode
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.extents import ONE, Extent, product
from onnxopt.program.hardware import ACCESS_BYTES, SECTOR_BYTES
from onnxopt.program.indexing import Access, Condition, Indexing, Term
from onnxopt.program.rowwise import RowProgram


def modes(program: RowProgram) -> str:
    """The mode of every access, then of every condition.

    A condition is BY_COLUMN where it depends on the column alone, and DENSE where it is the same for a whole row.
    """
    index = program.index
    if index is None:
        return ""
    conditions = [_condition_mode(program, c) for c in index.conditions]
    letters = [_mode(program, a, [conditions[g] for g in a.guards]) for a in index.accesses]
    return "".join((*letters, *conditions))


def _mode(program: RowProgram, access: Access, guards: Sequence[Mode]) -> Mode:
    _, length, inner = program.domain
    if not access.terms or inner != ONE or Mode.ANY in guards or guards.count(Mode.BY_COLUMN) > 1:
        return Mode.ANY
    first = access.terms[0]
    if first.div != ONE or first.stride != ONE:
        return Mode.ANY
    if len(access.terms) == 1 and not access.offset and not guards and first.mod == product(program.domain):
        return Mode.FLAT
    if len(access.terms) == 1 and first.mod == length:
        return Mode.BY_COLUMN
    return Mode.DENSE if first.mod.over(length) is not None else Mode.ANY


def _condition_mode(program: RowProgram, condition: Condition) -> Mode:
    _, length, inner = program.domain
    if inner != ONE:
        return Mode.ANY
    if condition.terms == (Term(ONE, length, ONE),):
        return Mode.BY_COLUMN
    return Mode.DENSE if all(t.div.over(length) is not None for t in condition.terms) else Mode.ANY


def input_read_across(index: Indexing, inputs: Sequence[str], length: Extent) -> int | None:
    """The first input of which neighbours in the domain lie far apart in memory, None if there is no such input.

    Most of the bytes that memory moves for such an input are not used. An input that has no more elements than a row
    (of `length`) stays in the cache and does not count. inputs: storage dtypes.
    """
    scattered = (a.input for a in index.accesses if _is_scattered(a, DTYPES[inputs[a.input]].size, length))
    return next(scattered, None)


def splits_vectors(program: RowProgram) -> bool:
    """Whether a guarded part of a row begins or ends inside a vector, so that the vector is loaded in pieces."""
    index = program.index
    if index is None:
        return False
    guards = {g for a in index.accesses for g in a.guards}
    width = ACCESS_BYTES // min(DTYPES[d].size for d in program.inputs)
    in_rows = [index.conditions[g] for g in guards if _condition_mode(program, index.conditions[g]) != Mode.DENSE]
    bounds = [bound for c in in_rows for bound in (c.low - c.offset, c.high - c.low)]
    return any(part.factor % width for bound in bounds for part in bound.parts)


def _is_scattered(access: Access, size: int, length: Extent) -> bool:
    if not access.terms or product(t.mod for t in access.terms).at_most(length):
        return False
    first = access.terms[0]
    if first.div != ONE:
        return False
    return first.stride != ONE or (first.mod.number or SECTOR_BYTES) * size < SECTOR_BYTES

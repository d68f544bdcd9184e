"""How the accesses of a rowwise kernel with index operations lie over its rows."""

from __future__ import annotations

from onnxopt.dtypes import DTYPES
from onnxopt.extents import ONE, product
from onnxopt.indexing import Access
from onnxopt.row_program import RowProgram

_SECTOR = 32  # bytes that memory moves at least
_MOST_APART = 2  # elements between neighbours


def modes(program: RowProgram) -> str:
    """One letter a leaf, as row_variants.py has them; what is guarded is loaded in the general way."""
    index = program.index
    if index is None:
        return ""
    return "".join(_mode(program, a) for a in index.accesses) + "*" * len(index.conditions)


def _mode(program: RowProgram, access: Access) -> str:
    _, length, inner = program.domain
    if not access.terms or access.guards or inner != ONE:
        return "*"
    first = access.terms[0]
    if first.div != ONE or first.stride != ONE:
        return "*"
    if len(access.terms) == 1 and not access.offset and first.mod == product(program.domain):
        return "F"
    if len(access.terms) == 1 and first.mod == length:
        return "K"
    return "D" if first.mod.over(length) is not None else "*"


def reads_across(program: RowProgram) -> bool:
    """Whether some input is read across the order in which it lies in memory."""
    return program.index is not None and any(_is_scattered(program, a) for a in program.index.accesses)


def _is_scattered(program: RowProgram, access: Access) -> bool:
    """Whether neighbours in the domain lie so far apart that most of what memory moves would be for nothing. What has
    less elements than a row stays in the cache."""
    if not access.terms or product(t.mod for t in access.terms).at_most(program.domain[1]):
        return False
    first = access.terms[0]
    if first.div != ONE:
        return False
    step, size = first.stride.number, DTYPES[program.inputs[access.input]].size
    return step is None or abs(step) > _MOST_APART or (first.mod.number or _SECTOR) * size < _SECTOR

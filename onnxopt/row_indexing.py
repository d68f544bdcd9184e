"""How the accesses of a rowwise kernel with index operations lie over its rows."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.dtypes import DTYPES
from onnxopt.extents import ONE, Extent, product
from onnxopt.indexing import Access, Indexing
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


def reads_across(index: Indexing, inputs: Sequence[str], length: Extent) -> bool:
    """Whether some input is read so that neighbours in the domain lie far apart: then most of what memory moves would
    be for nothing. What has no more elements than a row (of `length`) stays in the cache. inputs: storage dtypes."""
    return any(_is_scattered(a, DTYPES[inputs[a.input]].size, length) for a in index.accesses)


def _is_scattered(access: Access, size: int, length: Extent) -> bool:
    if not access.terms or product(t.mod for t in access.terms).at_most(length):
        return False
    first = access.terms[0]
    if first.div != ONE:
        return False
    step = first.stride.number
    return step is None or abs(step) > _MOST_APART or (first.mod.number or _SECTOR) * size < _SECTOR

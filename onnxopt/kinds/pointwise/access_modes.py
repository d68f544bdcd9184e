"""Access modes: the memory layout of the elements that an access reads for one vector of the domain.

The `modes` of an entry point are one letter per access, then one letter per condition. The library and the CUDA code
read the same names from cuda_kernels/device/access_modes.h.
"""

from __future__ import annotations

import dataclasses
import enum

from onnxopt.program.extents import ONE, Extent
from onnxopt.program.indexing import Condition, Term


class Mode(enum.StrEnum):
    """One letter per mode.

    A run is a piece of memory whose neighbours are neighbours in the domain. A cell is a piece of the domain for which
    one element is read. A split run or cell may end inside a vector, where the next run or cell begins.
    """

    FLAT = "F"  # the domain index itself
    SCALAR = "S"  # one element for the whole domain
    RUN = "R"  # a run, for example a bias
    CELL = "C"  # a cell, for example a value per channel
    RUN_2 = "T"  # a run; its index has two terms
    CELL_2 = "U"  # a cell; its index has two terms
    RUN_ANY = "V"  # a run; its index has any number of terms
    CELL_ANY = "W"  # a cell; its index has any number of terms
    INTERLEAVED = "I"  # n runs in turn, for example DepthToSpace's columns: element j is element j / n of run j % n
    SPLIT_RUN = "r"
    SPLIT_CELL = "c"
    SPLIT_2 = "t"  # two terms
    SPLIT_ANY = "G"  # any number of terms
    GUARDED = "g"  # any terms; each element has conditions of its own
    COLUMN = "X"  # along the columns of a tile through shared memory, element by element (pointwise/tiled.cuh)
    COLUMN_8 = "Y"  # the same in vectors of 8 bytes
    COLUMN_16 = "Z"  # the same in vectors of 16 bytes
    COLUMN_SHIFTED = "z"  # the same in the aligned vectors of 16 bytes that hold the column
    UNIFORM = "P"  # a condition that is the same for a whole vector
    PER_ELEMENT = "p"  # a condition that may differ between the elements of a vector
    ANY = "*"  # terms that the host computes at launch
    BY_COLUMN = "K"  # rowwise: element k of every row is element k of the input
    DENSE = "D"  # rowwise: the elements of a row are contiguous


MAX_NEIGHBOURS = 16  # elements of the widest vector
GATHERED = frozenset(
    {Mode.SPLIT_RUN, Mode.SPLIT_CELL, Mode.SPLIT_2, Mode.SPLIT_ANY, Mode.GUARDED, Mode.PER_ELEMENT, Mode.ANY}
)
ALONG = (Mode.COLUMN, Mode.COLUMN_8, Mode.COLUMN_SHIFTED, Mode.COLUMN_16)  # the slowest first
_RUNS = {1: Mode.RUN, 2: Mode.RUN_2}  # by terms
_CELLS = {1: Mode.CELL, 2: Mode.CELL_2}


@dataclasses.dataclass(frozen=True)
class Fit:
    """Whether extents fit vectors of `width` elements.

    certain: whether a symbolic extent counts as a multiple of the width only where it is one for all values.
    """

    width: int
    certain: bool = True

    def whole(self, *extents: Extent) -> bool:
        """Whether all of these are multiples of the width."""
        return all(e.factor % self.width == 0 or (bool(e.symbols) and not self.certain) for e in extents)

    def whole_parts(self, terms: tuple[Term, ...], offset: tuple[Extent, ...]) -> bool:
        """Whether the part of a vector that comes from each of its runs is a whole narrower vector."""
        part = Fit(self.width // runs(terms, self.width), self.certain)
        return part.whole(terms[1].mod, *(t.stride for k, t in enumerate(terms) if k != 1), *offset)


def runs(terms: tuple[Term, ...], width: int) -> int:
    """The number of runs that the elements of a vector alternate among, 0 where they do not alternate."""
    if len(terms) < 2 or terms[0].div != ONE or terms[1].stride != ONE:
        return 0
    count = terms[0].mod.number
    if count is None or count >= width or width % count or terms[1].div != terms[0].mod:
        return 0
    return count


def access_mode(terms: tuple[Term, ...], offset: tuple[Extent, ...], fit: Fit, count: Extent | None) -> Mode:
    """The mode of an access. count: the size of the domain, None if unknown."""
    if not terms:
        return Mode.SCALAR
    inner, outer = terms[0], terms[1:]
    steps = len(terms)
    if inner.div == ONE and inner.stride == ONE:
        if steps == 1 and inner.mod == count and not offset:
            return Mode.FLAT
        if fit.whole(inner.mod, *(t.stride for t in outer), *offset):
            return _RUNS.get(steps, Mode.RUN_ANY)
        return gathered(terms, fit)
    if inner.div == ONE and runs(terms, fit.width) and fit.whole_parts(terms, offset):
        return Mode.INTERLEAVED
    if inner.div != ONE and fit.whole(*(t.div for t in terms)):
        return _CELLS.get(steps, Mode.CELL_ANY) if steps > 1 or inner.stride == ONE else Mode.CELL_ANY
    return gathered(terms, fit)


def gathered(terms: tuple[Term, ...], fit: Fit) -> Mode:
    """The mode of an access that is read element by element."""
    if not terms:
        return Mode.SCALAR
    inner, steps = terms[0], len(terms)
    period = inner.mod if inner.div == ONE else inner.div
    if period.number is not None and period.number < fit.width:
        return Mode.ANY  # a vector reaches into more than two runs or cells
    if steps == 1 and inner.stride == ONE:
        return Mode.SPLIT_RUN if inner.div == ONE else Mode.SPLIT_CELL
    return Mode.SPLIT_2 if steps == 2 else Mode.SPLIT_ANY


def condition_mode(condition: Condition, fit: Fit) -> Mode:
    """UNIFORM where a condition has one value for all elements of every vector, else PER_ELEMENT."""
    if not condition.terms or condition.terms[0].div != ONE:
        return Mode.UNIFORM if fit.whole(*(t.div for t in condition.terms)) else Mode.PER_ELEMENT
    inner = condition.terms[0]
    step = inner.stride.number
    if step is None or step <= 0 or not fit.whole(inner.mod):
        return Mode.PER_ELEMENT
    cell = step * fit.width
    bounds = (condition.low - condition.offset, condition.high - condition.offset)
    steps = [*(e.factor for bound in bounds for e in bound.parts), *(t.stride.factor for t in condition.terms[1:])]
    return Mode.UNIFORM if all(n % cell == 0 for n in steps) else Mode.PER_ELEMENT


def columns(terms: tuple[Term, ...]) -> Term | None:
    """The term along which a tile reads an access whose memory order is not the domain's, None for other accesses."""
    if not terms or terms[0].div != ONE or terms[0].stride == ONE:
        return None
    return next((t for t in terms[1:] if t.stride == ONE), None)

"""Modes: how the elements that an access reads lie over a vector of the domain, one letter each.

F  the domain index itself            S  one element for all
R  one run of neighbours, as a bias   C  one value for a cell of neighbours, as a channel
T  two terms, neighbours              U  two terms, cells
V  neighbours, any terms              W  cells, any terms
I  neighbours that take turns among a few runs, as the columns of DepthToSpace: element j is the (j / n)th of run j % n
r c t G  as R C T or U, and any terms, where a vector may reach into the next run or cell, but not into a third
g  any terms, each element behind guards of its own
X  along the columns of a tile, through shared memory (cuda_kernels/pointwise/tiled.cuh)
Y Z  the same, where the columns are read in vectors of 8 and of 16 bytes
z  as Z, where no vector lies whole: aligned ones that hold the columns are read
P  a condition that is the same for a whole vector      p  one that is not
*  decided by the host at launch
"""

from __future__ import annotations

import dataclasses

from onnxopt.extents import ONE, Extent
from onnxopt.indexing import Condition, Term

MOST_NEIGHBOURS = 16  # elements of the widest vector
GATHERED = frozenset("rctGgp*")
ALONG = "XYzZ"  # the slowest first
_WHOLE = {"neighbours": {1: "R", 2: "T"}, "cell": {1: "C", 2: "U"}}


@dataclasses.dataclass(frozen=True)
class Fit:
    """What a vector of `width` elements meets. certain: symbolic extents count as whole only where they must be."""

    width: int
    certain: bool = True

    def whole(self, *extents: Extent) -> bool:
        """Whether all of these are multiples of the width."""
        return all(e.factor % self.width == 0 or (bool(e.symbols) and not self.certain) for e in extents)

    def whole_parts(self, terms: tuple[Term, ...], offset: tuple[Extent, ...]) -> bool:
        """Whether what a vector takes from each of its runs is whole."""
        part = Fit(self.width // runs(terms, self.width), self.certain)
        return part.whole(terms[1].mod, *(t.stride for k, t in enumerate(terms) if k != 1), *offset)


def runs(terms: tuple[Term, ...], width: int) -> int:
    """How many runs the elements of a vector take turns among, 0 where they do not."""
    if len(terms) < 2 or terms[0].div != ONE or terms[1].stride != ONE:
        return 0
    count = terms[0].mod.number
    if count is None or count >= width or width % count or terms[1].div != terms[0].mod:
        return 0
    return count


def access_mode(terms: tuple[Term, ...], offset: tuple[Extent, ...], fit: Fit, count: Extent | None) -> str:
    """The letter of an access; count: the size of the domain, None where it is not known."""
    if not terms:
        return "S"
    inner, outer = terms[0], terms[1:]
    steps = len(terms)
    if inner.div == ONE and inner.stride == ONE:
        if steps == 1 and inner.mod == count and not offset:
            return "F"
        if fit.whole(inner.mod, *(t.stride for t in outer), *offset):
            return _WHOLE["neighbours"].get(steps, "V")
        return gathered(terms, fit)
    if inner.div == ONE and runs(terms, fit.width) and fit.whole_parts(terms, offset):
        return "I"
    if inner.div != ONE and fit.whole(*(t.div for t in terms)):
        return "C" if steps == 1 and inner.stride == ONE else "U" if steps == 2 else "W"
    return gathered(terms, fit)


def gathered(terms: tuple[Term, ...], fit: Fit) -> str:
    """The letter of an access that is read element by element."""
    if not terms:
        return "S"
    inner, steps = terms[0], len(terms)
    period = inner.mod if inner.div == ONE else inner.div
    if period.number is not None and period.number < fit.width:
        return "*"  # a vector reaches into more than two runs or cells
    if steps == 1 and inner.stride == ONE:
        return "r" if inner.div == ONE else "c"
    return "t" if steps == 2 else "G"


def condition_mode(condition: Condition, fit: Fit) -> str:
    """P where every vector lies on one side of the condition's bounds."""
    if not condition.terms or condition.terms[0].div != ONE:
        return "P" if fit.whole(*(t.div for t in condition.terms)) else "p"
    inner = condition.terms[0]
    step = inner.stride.number
    if step is None or step <= 0 or not fit.whole(inner.mod):
        return "p"
    cell = step * fit.width
    bounds = (condition.low - condition.offset, condition.high - condition.offset)
    steps = [t.stride.factor for t in condition.terms[1:]]
    return "P" if all(n % cell == 0 for n in (*bounds, *steps)) else "p"


def columns(terms: tuple[Term, ...]) -> Term | None:
    """The term along which a tile reads an access that lies across the domain's order, None where it does not."""
    if not terms or terms[0].div != ONE or terms[0].stride == ONE:
        return None
    return next((t for t in terms[1:] if t.stride == ONE), None)

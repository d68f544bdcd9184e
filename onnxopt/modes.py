"""Modes: how the elements that an access reads lie over a vector of the domain, one letter each.

F  the domain index itself            S  one element for all
R  one run of neighbours, as a bias   C  one value for a cell of neighbours, as a channel
T  two terms, neighbours              U  two terms, cells
V  neighbours, any terms              W  cells, any terms
r c t G  as R C T or U, and any terms, where vectors do not lie whole in a run or cell: element by element
X  along the columns of a tile, through shared memory (cuda_kernels/pointwise_tiled.cuh)
P  a condition that is the same for a whole vector      p  one that is not
*  decided by the host at launch
"""

from __future__ import annotations

import dataclasses

from onnxopt.extents import ONE, Extent
from onnxopt.indexing import Condition, Term

GATHERED = frozenset("rctGp")
_WHOLE = {"neighbours": {1: "R", 2: "T"}, "cell": {1: "C", 2: "U"}}


@dataclasses.dataclass(frozen=True)
class Fit:
    """What a vector of `width` elements meets. certain: symbolic extents count as whole only where they must be."""

    width: int
    certain: bool = True

    def whole(self, *extents: Extent) -> bool:
        """Whether all of these are multiples of the width."""
        return all(e.factor % self.width == 0 or (bool(e.symbols) and not self.certain) for e in extents)


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
        return "r" if steps == 1 else "t" if steps == 2 else "G"
    if inner.div != ONE:
        plain = steps == 1 and inner.stride == ONE
        if fit.whole(*(t.div for t in terms)):
            return "C" if plain else "U" if steps == 2 else "W"
        return "c" if plain else "t" if steps == 2 else "G"
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

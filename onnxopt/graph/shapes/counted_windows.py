"""Numbers of windows that are 1 or more wherever other windows fit.

floor(height / 4) >= 1, as a convolution has pixels     height >= 4     floor(height / 16 + 3 / 4) >= 1
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import sympy

from onnxopt.graph.shapes.dims import Dim


def fits(dim: Dim, sizes: Iterable[Dim]) -> bool:
    """Whether a size, the floor of a part of one symbol, is 1 or more wherever these sizes are."""
    line = _line(dim)
    if line is None:
        return False
    symbol, slope, start = line
    smallest = sympy.Integer(1)
    for other in map(_line, sizes):
        if other is not None and other[0] == symbol:
            smallest = max(smallest, sympy.Integer(math.ceil((1 - other[2]) / other[1])))
    return bool(slope * smallest + start >= 1)


def _line(dim: Dim) -> tuple[sympy.Symbol, sympy.Rational, sympy.Rational] | None:
    """The symbol, the slope above 0 and the start of floor(slope symbol + start) + number; None for other sizes."""
    if isinstance(dim, int):
        return None
    added, whole = dim.as_coeff_Add()
    if not isinstance(whole, sympy.floor) or len(whole.free_symbols) != 1 or not added.is_Integer:
        return None
    (symbol,) = whole.free_symbols
    start, term = whole.args[0].as_coeff_Add()
    slope, rest = term.as_coeff_Mul()
    if rest != symbol or not slope.is_Rational or slope <= 0 or not start.is_Rational:
        return None
    return symbol, slope, start + added

"""Sizes of windows that are whole multiples wherever the graph runs, because a node fails at all other sizes.

Transformers of windows pad an image to whole windows, and cut the padding off only if the exporter's example had any:

    h, w                                              the patches of the image, floor(height / 4) and floor(width / 4)
    Reshape(x [n, 4 ceil(h / 4), 4 ceil(w / 4), 32], [n, h * w, 32])    keeps the number of elements

The first product of sizes is nowhere below the second one, factor by factor, so equal products have equal factors:
h is 4 times ceil(h / 4), and the graph runs without padding alone. The same holds where floors take the place of
ceilings. The pass states it to what infers shapes later. Then the padding is 0, sizes of windows are products of
symbols, and what reads them compares and divides them. A run with another size fails at the same Reshape or at the one
that makes the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.dims import floor
from onnxopt.graph.shapes.infer import infer
from onnxopt.graph.shapes.multiples import multiples_of, state_multiple
from onnxopt.graph.sizes.single_sizes import zeros

_LARGEST = 64  # times that a size is as large as a part; and terms of an expression that is solved
_FACTORS = 3  # windows have up to three dims


class MultipleSizesPass(ir.passes.InPlacePass):
    """The pass. It changes no node. Nodes are in topological order, and the model has opset 13 or later."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        count = 0
        while (found := _first_multiples(model)) and count <= _LARGEST:
            for size, times in found.items():
                state_multiple(model.graph, size, times)
            count += 1
        return ir.passes.PassResult(model, False)


def _first_multiples(model: ir.Model) -> dict[sympy.Expr, int]:
    """The sizes that the first such node states to be multiples, with the number of times."""
    inferred = infer(model)
    symbols = {size for size in multiples_of(model.graph).values() if isinstance(size, sympy.Symbol)}
    for _, zero in zeros(model.graph, inferred):
        if zero.has(sympy.floor) and (found := multiples(zero, symbols)):
            return found
    return {}


def multiples(zero: sympy.Expr, symbols: set[sympy.Symbol]) -> dict[sympy.Expr, int]:
    """The floors, and symbols of these, that are whole multiples wherever a difference of two products is 0."""
    terms = sympy.Add.make_args(sympy.expand(zero))
    if len(terms) != 2:
        return {}
    for one, other in (terms, terms[::-1]):
        times, whole, parts = _divided(one, -other)
        is_alike = 0 < len(whole) == len(parts) <= _FACTORS and 1 < times <= _LARGEST
        if is_alike and all(isinstance(size, sympy.floor) or size in symbols for size in whole):
            for part in (_rounded_up, _rounded_down):
                if (found := next(_matched(whole, parts, times, part), None)) is not None:
                    return found
    return {}


def _divided(one: sympy.Expr, other: sympy.Expr) -> tuple[int, list[sympy.Expr], list[sympy.Expr]]:
    """other / one as a number, and the factors that `one` and `other` have besides; 0 where that is no whole number."""
    number, ratio = sympy.cancel(other / one).as_coeff_Mul()
    above, below = sympy.fraction(ratio)
    if not number.is_Integer:
        return 0, [], []
    return int(number), _factors(below), _factors(above)


def _factors(product: sympy.Expr) -> list[sympy.Expr]:
    """The factors of a product of powers."""
    powers = product.as_powers_dict().items()
    if any(not power.is_Integer for _, power in powers):
        return []
    return [base for base, power in powers for _ in range(int(power)) if base != 1]


def _rounded_up(size: sympy.Expr, times: int) -> sympy.Expr:
    return floor((size + times - 1) / sympy.Integer(times))


def _rounded_down(size: sympy.Expr, times: int) -> sympy.Expr:
    return floor(size / sympy.Integer(times))


def _matched(
    whole: list[sympy.Expr], parts: list[sympy.Expr], times: int, rounded: Callable[[sympy.Expr, int], sympy.Expr]
) -> Iterator[dict[sympy.Expr, int]]:
    """Each way in which the parts are those of the whole sizes, divided by numbers whose product is `times`."""
    if not whole:
        if times == 1:
            yield {}
        return
    size, *others = whole
    for number in (n for n in range(2, times + 1) if times % n == 0):
        part = rounded(size, number)
        if part in parts:
            rest = list(parts)
            rest.remove(part)
            for found in _matched(others, rest, times // number, rounded):
                if found.get(size, number) == number:
                    yield {size: number, **found}

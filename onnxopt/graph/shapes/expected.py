"""Sizes to expect of symbolic dims: for choices between ways that are right at every size.

A symbol has the size that the user says most runs have. Else, where a table limits it, half of what the table allows:

    Slice(table [512, 768], 0, sequence) -> [Min(512, sequence), 768], which is added to [batch, sequence, 768]
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import sympy

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.shapes.dims import parse_dim
from onnxopt.graph.shapes.infer import Knowledge


class ExpectedSizes:
    """known: what was inferred of a model. usual: sizes of symbols of its inputs, as the user gave them."""

    def __init__(self, inferred: Knowledge, usual: Mapping[str, int]) -> None:
        sizes = {symbol: max(limit // numbers().expected_share, 1) for symbol, limit in _limits(inferred).items()}
        for name, size in usual.items():
            symbol = parse_dim(name)
            if isinstance(symbol, sympy.Symbol):
                sizes[symbol] = size
        self._sizes, self._inferred = sizes, inferred

    def of(self, dim: int | str | sympy.Expr | ir.SymbolicDim | None) -> int | None:
        """The size to expect of a dim, in elements; None where nothing is known of it."""
        name = dim.value if isinstance(dim, ir.SymbolicDim) else dim
        if name is None or isinstance(name, int):
            return name
        size = sympy.sympify(self._inferred.named(name) if isinstance(name, str) else name).subs(self._sizes)
        return int(size) if size.is_Integer and size >= 0 else None


def _limits(inferred: Knowledge) -> dict[sympy.Symbol, int]:
    """The size that each symbol may have at most, where it is a number."""
    limits: dict[sympy.Symbol, int] = {}
    for dim in inferred.all_dims():
        if not isinstance(dim, sympy.Min) or len(dim.args) != 2:
            continue
        numbers = [int(a) for a in dim.args if a.is_Integer]
        symbols = [a for a in dim.args if isinstance(a, sympy.Symbol)]
        if len(numbers) == len(symbols) == 1:
            limits[symbols[0]] = min(numbers[0], limits.get(symbols[0], numbers[0]))
    return limits

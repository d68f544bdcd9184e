"""Sizes that are whole multiples at every run, as the graph states them (graph/sizes/multiple_sizes.py).

    floor(height / 4)    is 8 times floor(height / 32)

The name of such a floor is that of a symbol of 1 or more in what is inferred, so that dims are products of symbols.
A graph's `meta` has them: passes that change the nodes which prove them keep them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.dims import Dim, floor, simplest, size_symbol

_KEY = "onnxopt.multiples"  # key in ir.Graph.meta


def multiples_of(graph: ir.Graph) -> Mapping[sympy.Expr, sympy.Expr]:
    """The sizes that are whole multiples, each with the product that it is."""
    return graph.meta.get(_KEY, {})


def state_multiple(graph: ir.Graph, size: sympy.Expr, times: int) -> None:
    """Note that a size, a floor or the symbol of one, is `times` as large as a whole number."""
    stated = dict(multiples_of(graph))
    symbols = {symbol: whole for whole, symbol in stated.items() if isinstance(symbol, sympy.Symbol)}
    part = floor(symbols.get(size, size) / sympy.Integer(times))
    symbol = size_symbol(str(part))
    product_of = {size: times * symbol}
    stated = {whole: simplest(product.xreplace(product_of)) for whole, product in stated.items()}
    graph.meta[_KEY] = {**stated, **({} if size in symbols else product_of), part: symbol}


def hand_on_multiples(graph: ir.Graph, to: ir.Graph) -> None:
    """Note what a graph states for another one too, of the same inputs and the same sizes."""
    to.meta[_KEY] = dict(multiples_of(graph))


def as_multiple(dim: Dim, stated: Mapping[sympy.Expr, sympy.Expr]) -> Dim:
    """A dim with each of these sizes as the product that it is."""
    return dim if isinstance(dim, int) or not stated else simplest(dim.xreplace(dict(stated)))

"""Experts that an exporter wrote as a loop over them: which tokens chose an expert is known at run time alone.

    tokens = NonZero(ids == e)    h = Gather(x, tokens) W ...    y = Scatter(y, tokens, h V ...)

No kernel runs these together: an expert has as many rows as NonZero finds, and what it adds goes to the next one.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.fusion import index_ops
from onnxopt.fusion.context import Context
from onnxopt.graph.match import is_constant
from onnxopt.graph.refusal import Refusal

_MIN = 2  # experts
_MAX_NODES = 256  # of one
_ENDS = frozenset({"ScatterND", "ScatterElements", "Shape", "Size", "If", "Loop", "Scan", "NonZero"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})


def refusals(context: Context) -> list[Refusal]:
    """One refusal that says how many experts there are, with their products and launches; none where there are none."""
    loops = [of for n in context.order if n.op_type == "NonZero" and any(map(_is_product, of := _downstream(n)))]
    products = dict.fromkeys(n for of in loops for n in of if _is_product(n))
    weights = {tuple(sorted(str(context.shapes.dims(_weight(n))) for n in of if _is_product(n))) for of in loops}
    if len(loops) < _MIN or len(weights) != 1 or len(products) < len(loops):
        return []  # experts have weights of the same sizes
    nodes = dict.fromkeys(n for of in loops for n in of)
    launches = sum(not index_ops.is_view(n) for n in nodes)
    first = next(iter(products))
    reason = (
        f"{len(loops)} experts run one after the other from NonZero, {len(products)} products in {launches} launches:"
        " how many tokens each has is read back to the CPU; an export with grouped products of the experts becomes one"
        " kernel"
    )
    return [Refusal(first.name or "", first.op_type, "", reason)]


def _is_product(node: ir.Node) -> bool:
    return node.op_type in _PRODUCTS and is_constant(_weight(node))


def _weight(node: ir.Node) -> ir.Value:
    weight = node.inputs[1]
    assert weight is not None  # both operators have two operands
    return weight


def _downstream(node: ir.Node) -> list[ir.Node]:
    """What is computed of the tokens that a NonZero finds, up to where it is added to those of other experts."""
    nodes: dict[ir.Node, None] = {}
    pending = [node]
    while pending and len(nodes) < _MAX_NODES:
        for value in pending.pop().outputs:
            for reader in value.consumers():
                if reader not in nodes and reader.op_type not in _ENDS:
                    nodes[reader] = None
                    pending.append(reader)
    return list(nodes)

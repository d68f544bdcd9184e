"""Rows that are reduced and meet the result again, as in norms and Softmax: statistics are computed in float32."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import operators
from onnxopt.graph.precision.norms import has_float_rows
from onnxopt.graph.precision.operators import Sort
from onnxopt.graph.precision.values import VIEWS, feeds_statistics, is_float, readers_of

Keep = Callable[[ir.Node, str], None]


def keep_statistics(nodes: Sequence[ir.Node], float_nodes: Container[ir.Node], keep: Keep, graph: ir.Graph) -> None:
    """Keep reductions whose results meet their rows again, and the nodes that compute with them. graph: the main one.

    A factor behind a norm is not kept: ONNX Runtime's optimizer knows norms with the Casts around them as PyTorch
    writes them, and makes invalid nodes of others.
    """
    reason = "It computes with a statistic of its row"
    statistics: set[ir.Value] = set()
    for node in nodes:
        floats = [v for v in node.inputs if is_float(v) and v is not None and not is_constant(v)]
        sort = operators.sort_of(node)
        if sort is Sort.STATISTIC and _meets_its_row(node, graph):
            keep(node, "It reduces rows to a statistic")
            statistics.update(node.outputs)
        elif (sort is Sort.ELEMENTWISE or node.op_type in VIEWS) and floats and statistics.issuperset(floats):
            keep(node, reason)
            statistics.update(node.outputs)
        elif sort is Sort.ELEMENTWISE and statistics.intersection(floats):
            keep(node, reason)
    for node in reversed(nodes):
        readers = readers_of(node)
        all_kept = bool(readers) and all(r in float_nodes for r in readers)
        if all_kept and feeds_statistics(node) and any(r.op_type.startswith("Reduce") for r in readers):
            keep(node, "Its result is reduced to a statistic")


def _meets_its_row(node: ir.Node, graph: ir.Graph) -> bool:
    """Whether a reduction's result is computed with, and not only read by products, as that of a pool is.

    So are results that a body or branch returns: other nodes compute with them.
    """
    pending = list(node.outputs)
    while pending:
        value = pending.pop()
        if value.is_graph_output() and value.graph is not graph:
            return True
        for reader in (use.node for use in value.uses()):
            sort = operators.sort_of(reader)
            if sort is Sort.MOVE:
                pending += reader.outputs
            elif sort is not Sort.PRODUCT:
                return True
    return False


def keep_factors_of_norms(nodes: Sequence[ir.Node], float_nodes: Container[ir.Node], keep: Keep) -> None:
    """Keep the factor and the bias of a spelled-out norm whose rows are stored in float32.

    ONNX Runtime's LayerNormFusion makes one node of it all, without the Cast between, and that node would have
    rows of float32 and a factor of 16 bits, which its own checks refuse.
    """
    for node in nodes:
        if node not in float_nodes or node.op_type not in ("Div", "Mul"):
            continue
        if not any(has_float_rows(v, float_nodes) for v in node.inputs):
            continue
        for factor in (r for r in readers_of(node) if r.op_type == "Mul" and r not in float_nodes):
            keep(factor, "It is the factor of a norm of float32 rows")
            for bias in (r for r in readers_of(factor) if r.op_type == "Add"):
                keep(bias, "It is the bias of a norm of float32 rows")

"""The boundary of a set of nodes: which values it reads from outside, and which values the outside reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from onnxopt.fusion.operands import constant


def inputs_of(
    nodes: Sequence[ir.Node], operands: Callable[[ir.Node], Iterable[ir.Value | None]] = lambda node: node.inputs
) -> list[ir.Value]:
    """Values read from outside, in order of first use; constants of one element are left out.

    operands: the inputs of a node that hold data, where some hold axes or shapes.
    """
    inside = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in operands(n) if v is not None)
    return [v for v in read if v not in inside and constant(v) is None]


def outputs_of(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Values that a node outside or the graph's interface reads, in order of definition."""
    inside = set(nodes)
    values = (v for n in nodes for v in n.outputs)
    return [v for v in values if v.is_graph_output() or any(u not in inside for u in v.consumers())]

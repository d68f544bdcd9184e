"""The boundary of a set of nodes: the values that the nodes read from outside, and their results read outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from onnxopt.fusion.operands import constant


def inputs_of(
    nodes: Sequence[ir.Node], operands: Callable[[ir.Node], Iterable[ir.Value | None]] = lambda node: node.inputs
) -> list[ir.Value]:
    """Values that the nodes read from outside, in order of first use; scalar constants are left out.

    operands: gives the inputs of a node that count; by default all of them, axes and shapes included.
    """
    inside = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in operands(n) if v is not None)
    return [v for v in read if v not in inside and constant(v) is None]


def outputs_of(
    nodes: Sequence[ir.Node], readers: Callable[[ir.Value], Iterable[ir.Node]] = ir.Value.consumers
) -> list[ir.Value]:
    """Values that a node outside or the graph's interface reads, in order of definition.

    readers: gives the nodes that read a value.
    """
    inside = set(nodes)
    values = (v for n in nodes for v in n.outputs)
    return [v for v in values if v.is_graph_output() or any(u not in inside for u in readers(v))]

"""The elementwise nodes in front of a node that one kernel computes with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from onnxopt.fusion.operands import constant
from onnxopt.graph.shapes.shapes import Shapes


def nodes_in_front(x: ir.Value, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Those of the nodes that compute x, in their order."""
    known = set(nodes)
    found: set[ir.Node] = set()
    pending: list[ir.Value] = [x]
    while pending:
        node = pending.pop().producer()
        if node is not None and node in known and node not in found:
            found.add(node)
            pending += [v for v in node.inputs if v is not None]
    return [n for n in nodes if n in found]


def source_of(x: ir.Value, nodes: Sequence[ir.Node], shapes: Shapes) -> ir.Value:
    """The one tensor of x's shape that the nodes in front of x read from outside. ValueError where it is not one."""
    inside = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in inside)
    whole = [v for v in read if constant(v) is None and shapes.same(v, x)]
    if len(whole) != 1:
        raise ValueError(f"The nodes in front of `{x.name}` read {len(whole)} tensors of its shape")
    return whole[0]


def inputs_around(
    own: Collection[ir.Node], first: Iterable[ir.Value | None], nodes: Sequence[ir.Node]
) -> list[ir.Value]:
    """Values that a region reads from outside: those of `first` that it does not compute, then the others in order of
    first use, without scalar constants.

    own: the nodes of the operator in the middle, whose inputs are in `first`.
    """
    inside = {v for n in nodes for v in n.outputs}
    read = (v for n in nodes if n not in own for v in n.inputs if v is not None and constant(v) is None)
    given = [v for v in first if v is not None]
    return [v for v in dict.fromkeys([*given, *read]) if v not in inside]

"""Growing Concats: each joins the operands of the one before it and more, as in dense blocks.

    Concat(x, a) -> convolution -> b
    Concat(x, a, b) -> convolution -> c
    Concat(x, a, b, c)

The result of each is neighbouring channels of the widest one's. A Concat may also have a narrower one's result as an
operand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.block.slices import channels
from onnxopt.program.block import MAX_INPUTS, MAX_STEPS


@dataclasses.dataclass(frozen=True)
class Growing:
    """The widest of some Concats. operands, narrower: the first channel of each in its result.

    operands: its operands, or those of a narrower Concat in place of that one's result. narrower: the other Concats.
    """

    widest: ir.Node
    operands: Mapping[ir.Value, int]
    narrower: Mapping[ir.Node, int]


def growing(widest: ir.Node, shapes: Shapes, joins: Callable[[ir.Node], bool]) -> Growing | None:
    """The Concats whose operands this one has too. None where there are none, or it has an operand twice or too many.

    joins: whether a node is a Concat of channels that may be one of them.
    """
    operands = _operands(widest, joins)
    if not operands:
        return None
    firsts: dict[ir.Value, int] = {}
    at = 0
    for value in operands:
        firsts[value] = at
        at += channels(value, shapes) or 0
    narrower: dict[ir.Node, int] = {}
    for node in dict.fromkeys(n for v in operands for n in v.consumers()):
        joined = _operands(node, joins) if node is not widest and joins(node) else []
        k = operands.index(joined[0]) if joined and joined[0] in firsts else 0
        if joined and operands[k : k + len(joined)] == joined:
            narrower[node] = firsts[joined[0]]
    return Growing(widest, firsts, narrower) if narrower else None


def _operands(concat: ir.Node, joins: Callable[[ir.Node], bool]) -> list[ir.Value]:
    """Nothing where one is there twice, or there are more than a block reads and computes."""
    operands: dict[ir.Value, None] = {}
    waiting = [v for v in reversed(concat.inputs) if v is not None]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if node is not None and joins(node):
            waiting += [v for v in reversed(node.inputs) if v is not None]
        elif value in operands or len(operands) == MAX_INPUTS + MAX_STEPS:
            return []
        else:
            operands[value] = None
    return list(operands)

"""Which values attention reads as keys or values: through operators that move elements, and in branches of If too.

Softmax(... MatMul(q, k) ...)    MatMul(... Softmax(s) ..., v)    Attention(q, k, v)    MultiHeadAttention(q, k, v)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import bodies

_MOVES = frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Expand", "Concat", "Cast"}
)
_SCALES = frozenset({"Mul", "Div"})  # of keys, by a constant
# Between a product and a Softmax, or a Softmax and a product: scales, masks, caps and guards.
_OF_SCORES = _MOVES | _SCALES | {"Add", "Sub", "Where", "Max", "Min", "Clip", "Tanh", "Dropout"}
_ATTENTION = {("", "Attention"), *(("com.microsoft", f"{name}Attention") for name in ("MultiHead", "GroupQuery"))}
_KEYS_AND_VALUES = (1, 2)
_FAR = 24  # values between a product and a Softmax


class KeysAndValues:
    """Those of one graph, with the graphs in it."""

    def __init__(self, graph: ir.Graph) -> None:
        self._handed_on: dict[ir.Value, list[ir.Value]] = {}  # to a result of If, or into and out of bodies
        for result, sources in bodies.copies(graph).items():
            for value in sources:
                self._handed_on.setdefault(value, []).append(result)

    def holds(self, value: ir.Value) -> bool:
        """Whether attention reads the elements of a value, and reads them as keys or values alone."""
        readers = list(_readers(value, self._handed_on))
        return bool(readers) and all(_is_attention(node, position) for node, position in readers)


def _readers(value: ir.Value, handed_on: Mapping[ir.Value, Sequence[ir.Value]]) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that compute with the elements of a value, and as which operand."""
    pending, seen = [value], {value}
    while pending:
        moved = pending.pop()
        following = list(handed_on.get(moved, ()))
        for node, position in moved.uses():
            if _only_moves(node, position):
                following += node.outputs
            elif not _reads_the_shape(node):
                yield node, position
        pending += [v for v in following if v not in seen]
        seen.update(following)


def _only_moves(node: ir.Node, position: int) -> bool:
    if node.domain != "":
        return False
    if node.op_type in _SCALES:
        return is_constant(node.inputs[1 - position])
    return node.op_type in _MOVES and (position == 0 or node.op_type == "Concat")


def _reads_the_shape(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Shape", "Size")


def _is_attention(node: ir.Node, position: int) -> bool:
    """Whether a node is attention, or a product of it, that reads the operand as its keys or values."""
    if (node.domain, node.op_type) in _ATTENTION:
        return position in _KEYS_AND_VALUES
    if node.domain != "" or node.op_type != "MatMul" or position != 1 or is_constant(node.inputs[0]):
        return False
    return _leads_to_softmax(node.outputs[0]) or _comes_from_softmax(node.inputs[0])


def _leads_to_softmax(scores: ir.Value) -> bool:
    pending, seen = [scores], {scores}
    while pending and len(seen) < _FAR:
        for node, _ in pending.pop().uses():
            if node.domain == "" and node.op_type == "Softmax":
                return True
            following = node.outputs if node.domain == "" and node.op_type in _OF_SCORES else []
            pending += [v for v in following if v not in seen]
            seen.update(following)
    return False


def _comes_from_softmax(weights: ir.Value | None) -> bool:
    pending, seen = [weights], {weights}
    while pending and len(seen) < _FAR:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node is None or node.domain != "":
            continue
        if node.op_type == "Softmax":
            return True
        operands = node.inputs if node.op_type in _OF_SCORES else ()
        pending += [v for v in operands if v not in seen]
        seen.update(operands)
    return False

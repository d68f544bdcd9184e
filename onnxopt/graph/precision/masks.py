"""Values that only hide scores from a Softmax: there, any number of -1e4 or less means the same."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.additive_masks import HIDDEN
from onnxopt.graph.match import constant
from onnxopt.graph.passes.new_nodes import initializer

# The operators that pass a mask on to the scores.
_PASSING = frozenset(
    {"Add", "Sub", "Mul", "Where", "Max", "Min", "Expand", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice",
     "Concat", "Tile", "Gather", "Identity"}
)  # fmt: skip
LOWEST = HIDDEN  # in place of all lower numbers


def separate_numbers(model: ir.Model) -> None:
    """Give each Where that puts a low number among computed ones a constant of its own, in place.

    It may hide scores, while others compute with the number.
    """
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            number = _number(value)
            if value.dtype != ir.DataType.FLOAT or number is None or number > LOWEST:
                continue
            choosing = [use for use in value.uses() if _chooses(use.node, use.idx)]
            for use in choosing if len(value.uses()) > 1 else ():
                assert value.const_value is not None
                own = initializer(graph, value.const_value, f"{value.name}_of_{use.node.name}")
                use.node.replace_input_with(use.idx, own)


def _chooses(node: ir.Node, position: int) -> bool:
    """Whether a node chooses between its operand at this position and computed elements."""
    other = node.inputs[3 - position] if node.op_type == "Where" and node.domain == "" and position else None
    return other is not None and _number(other) is None


def _number(value: ir.Value) -> float | None:
    """The element of a constant of one, None for other values."""
    array = constant(value) if value.const_value is not None and value.const_value.size == 1 else None
    return None if array is None else float(array.item())


class Hiding:
    """Which values end in Softmax alone."""

    def __init__(self) -> None:
        self._ends: dict[ir.Value, bool] = {}

    def ends_in_softmax(self, value: ir.Value) -> bool:
        """Whether every reader of the value is a Softmax, or passes it on to one and to nothing else."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._ends:
                pending.pop()
                continue
            readers = [use.node for use in current.uses() if use.node.op_type != "Shape"]
            through = [n for n in readers if not _is_softmax(n)]
            if not readers or current.is_graph_output() or not all(map(_passes, through)):
                self._ends[current] = False
                continue
            unknown = [n.outputs[0] for n in through if n.outputs[0] not in self._ends]
            if unknown:
                pending += unknown
                continue
            self._ends[current] = all(self._ends[n.outputs[0]] for n in through)
        return self._ends[value]


def _is_softmax(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Softmax"


def _passes(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _PASSING and len(node.outputs) == 1

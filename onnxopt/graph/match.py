"""What passes, rewrite rules and recognizers ask of values and nodes, and the constants that rules add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is a constant that callers cannot replace: a graph input with a default is none."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The elements of a constant, None for other values."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def integers(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant of integers in one list, None for other values."""
    array = constant(value)
    return None if array is None else [int(number) for number in array.flat]


def operand(node: ir.Node, position: int) -> ir.Value | None:
    """An input of a node, None where it is absent."""
    return node.inputs[position] if len(node.inputs) > position else None


def reads(node: ir.Node) -> tuple[ir.Value, ...]:
    """The values that a node reads: its inputs, and the outer values that bodies of a control-flow node capture."""
    inner = [attribute.as_graph() for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH]
    captured = [v for graph in inner for n in graph for v in reads(n)]
    captured += [v for graph in inner for v in graph.outputs]
    return tuple(dict.fromkeys(v for v in (*node.inputs, *captured) if v is not None))


def is_private(value: ir.Value) -> bool:
    """Whether one node reads a value, at one position, and nothing outside the graph does."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value, None where there are more uses than one, or the graph returns it."""
    return next(iter(value.uses())).node if is_private(value) else None


def new_integers(op: Any, values: Sequence[Any]) -> Any:
    """A constant int64 tensor of one dim, in the replacement of a rewrite rule. op: onnxscript's builder."""
    return op.Constant(value=ir.tensor(list(values), dtype=ir.DataType.INT64))

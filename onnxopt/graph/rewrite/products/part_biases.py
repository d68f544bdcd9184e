"""Biases of the parts of a product become one bias of the product.

    Split(x W) -> (Add(q, b1), k, Add(v, b3))    ->    Split(Add(x W, [b1, 0, b3]))    also by Slices

DeBERTa adds biases to q and v of one product, and exporters leave them where they stand. A product takes one bias in
its kernel, and attention reads the parts where they lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import constant, integers, is_constant, is_private, only_consumer, operand
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass, Scope


@dataclasses.dataclass(frozen=True)
class _Part:
    """Columns of a product from `first` on. sum: the Add of a constant that is all that reads them, if it is."""

    value: ir.Value
    first: int
    size: int
    sum: ir.Node | None
    bias: np.ndarray | None


def _merge(model: ir.Model, _: Scope) -> int:
    return sum(_merge_biases(node) for node in tuple(model.graph) if node.op_type == "MatMul" and node.domain == "")


def _merge_biases(product: ir.Node) -> bool:
    weight, y = product.inputs[1], product.outputs[0]
    if not is_constant(weight) or y.is_graph_output() or y.shape is None or y.dtype is None:
        return False
    columns, rank = weight.const_value.shape[-1], len(y.shape)  # type: ignore[union-attr]
    parts = _parts(y, rank)
    if parts is None or not any(part.sum for part in parts) or rank < 2 or not isinstance(columns, int):
        return False
    bias, covered = np.zeros(columns, y.dtype.numpy()), np.zeros(columns, bool)
    for part in parts:
        span = slice(part.first, part.first + part.size)
        if covered[span].any() or part.first + part.size > columns:
            return False
        covered[span] = True
        if part.bias is not None:
            bias[span] = part.bias
    assert isinstance(product.graph, ir.Graph)
    new = NewNodes(product.graph, product, product)
    readers = {use.node for use in y.uses()}
    total = new.add("Add", [y, new.constant(bias)], y.dtype)
    total.shape = y.shape.copy()
    for reader in readers:
        reader.replace_input_with(0, total)
    for part in parts:
        if part.sum is not None:
            part.sum.outputs[0].replace_all_uses_with(part.value, replace_graph_outputs=True)
    return True


def _parts(y: ir.Value, rank: int) -> list[_Part] | None:
    """What the last axis of a value is divided into; None where something else reads the value."""
    parts: list[_Part] = []
    for node, position in y.uses():
        columns = list(_columns(node, rank)) if position == 0 and node.domain == "" else []
        if not columns:
            return None
        for value, first, size in columns:
            total = only_consumer(value)
            bias = None if total is None else _bias(total, value, size)
            parts.append(_Part(value, first, size, None if bias is None else total, bias))
    return parts


def _columns(node: ir.Node, rank: int) -> Iterator[tuple[ir.Value, int, int]]:
    """Each result of a Split or Slice of columns, with its first column and how many it has."""
    if node.op_type == "Split" and node.attributes.get_int("axis", 0) in (-1, rank - 1):
        sizes = integers(operand(node, 1)) or [_last(value) for value in node.outputs]
        if all(sizes):
            firsts = np.cumsum([0, *sizes[:-1]]).tolist()  # type: ignore[list-item]
            yield from zip(node.outputs, firsts, sizes, strict=True)  # type: ignore[misc]
    if node.op_type == "Slice":
        starts, axes = integers(operand(node, 1)), integers(operand(node, 3))
        steps, size = integers(operand(node, 4)) or [1], _last(node.outputs[0])
        if starts is not None and axes in ([-1], [rank - 1]) and steps == [1] and starts[0] >= 0 and size:
            yield node.outputs[0], starts[0], size


def _last(value: ir.Value) -> int:
    """The size of the last dim, 0 where it is not known."""
    size = None if value.shape is None or not len(value.shape) else value.shape[-1]
    return size if isinstance(size, int) else 0


def _bias(total: ir.Node, value: ir.Value, size: int) -> np.ndarray | None:
    """The constant that a node adds to columns, one element each."""
    if total.op_type != "Add" or total.domain != "" or not is_private(value) or value.shape is None:
        return None
    added = constant(total.inputs[1] if total.inputs[0] is value else total.inputs[0])
    if added is None or added.size != size or added.shape[-1:] != (size,) or added.ndim > len(value.shape):
        return None
    return added.reshape(size)


RULES = (Pass(_merge),)

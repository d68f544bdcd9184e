"""Brings masks that find padding by a sum to one condition, and changes no bit of any result.

    Where(c + x == 0, low, c)    c of 0 and low by position -> Where(And(c is 0, x is not 0), 0, low)

Where c is low, both are low. Transformers up to 4.52 wrote the masks of decoders so: c is causal, and x the mask of
tokens. The sum holds positions and padding together, which a kernel reads apart, and reaches beyond float16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.masks.index_functions import Choice
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes.value_dims import uniform


class _Sum(NamedTuple):
    """by_position: the mask c. padding: x. low: the number of hidden keys."""

    by_position: ir.Value
    padding: ir.Value
    low: ir.Value


class SummedPaddingPass(ir.passes.InPlacePass):
    """Replaces each such Where of the main graph. The model has opset 13 or later."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [(node, parts) for node in model.graph if (parts := _parts(node)) is not None]
        index_values = IndexValues(model.graph, infer.infer(model)) if found else None
        modified = False
        for node, parts in found:
            assert index_values is not None
            choice, low = index_values.of(parts.by_position), uniform(parts.low)
            if isinstance(choice, Choice) and {choice.shown, choice.hidden} == {0.0, low} and low != 0:
                _replace(model.graph, node, parts)
                modified = True
        return ir.passes.PassResult(model, modified)


def _parts(node: ir.Node) -> _Sum | None:
    """What a Where reads that compares a sum; None for others."""
    if (node.domain, node.op_type) != ("", "Where"):
        return None
    condition, low, by_position = node.inputs
    equal = _producer(condition, "Equal")
    for summed, number in (equal.inputs, equal.inputs[::-1]) if equal is not None else ():
        added = _producer(summed, "Add")
        if added is None or number is None or uniform(number) != 0 or by_position not in added.inputs:
            continue
        padding = added.inputs[1 - added.inputs.index(by_position)]
        if padding is not None and by_position is not None and low is not None:
            return _Sum(by_position, padding, low)
    return None


def _replace(graph: ir.Graph, node: ir.Node, parts: _Sum) -> None:
    new, dtype = NewNodes(graph, node), node.outputs[0].dtype or parts.low.dtype
    cast = _producer(parts.padding, "Cast")
    source = None if cast is None else cast.inputs[0]
    integers = source is not None and source.dtype is not None and source.dtype.is_integer()
    to_bool = [ir.AttrInt64("to", ir.DataType.BOOL)]
    hidden = new.add("Cast", [parts.by_position], ir.DataType.BOOL, to_bool)
    is_token = new.add("Cast", [source if integers else parts.padding], ir.DataType.BOOL, to_bool)
    both = new.add("And", [new.add("Not", [hidden], ir.DataType.BOOL), is_token], ir.DataType.BOOL)
    assert dtype is not None
    result = new.add("Where", [both, new.constant(np.zeros((), dtype.numpy())), parts.low], dtype)
    result.shape = node.outputs[0].shape
    node.outputs[0].replace_all_uses_with(result, replace_graph_outputs=True)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None

"""Anchors: names of values of the decomposed model that rules cannot give to another value.

They are in a value's `meta`, which clones keep and no file has. A rule that computes a value anew gives the new value
the same name, and where it drops a node the readers get the node's operand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

ANCHORS = "onnxopt.anchors"  # key of meta: objects
ORIGINALS = "onnxopt.originals"  # key of meta: the nodes that computed the value before they were decomposed


def anchor_of(value: ir.Value) -> object:
    """An anchor of the value, which is added where it has none."""
    return value.meta.setdefault(ANCHORS, (object(),))[0]


def give(value: ir.Value, other: ir.Value) -> None:
    """Give a value the anchors and originals of another one, which is the same tensor."""
    for key in (ANCHORS, ORIGINALS):
        if key in other.meta:
            value.meta[key] = tuple(dict.fromkeys((*value.meta.get(key, ()), *other.meta[key])))


@contextlib.contextmanager
def carried(model: ir.Model) -> Iterator[None]:
    """Within this context rules may replace nodes; the values that they compute anew have their anchors afterwards."""
    anchored = {v.name: v for v in _results(model) if ANCHORS in v.meta}
    yield
    if not anchored:
        return
    for value in _results(model):
        before = anchored.get(value.name)
        if before is not None and before is not value and _is_gone(before):
            give(value, before)
    for node in reversed([n for graph in model.graphs() for n in graph if (n.domain, n.op_type) == ("", "Identity")]):
        if node.inputs[0] is not None:
            give(node.inputs[0], node.outputs[0])


def _results(model: ir.Model) -> Iterator[ir.Value]:
    return (value for graph in model.graphs() for node in graph for value in node.outputs)


def _is_gone(value: ir.Value) -> bool:
    node = value.producer()
    return node is None or node.graph is None

"""Spelled-out norms whose rows are stored in float32."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

_DEPTH = 3  # Sub, and the Casts that exporters put around it


def has_float_rows(value: ir.Value | None, float_nodes: Container[ir.Node]) -> bool:
    """Whether a value is float32 rows less their mean. float_nodes: the nodes that stay float32."""
    node = None if value is None else value.producer()
    for _ in range(_DEPTH):
        if node is None or node not in float_nodes:
            return False
        rows = node.inputs[0] if node.inputs else None
        source = None if rows is None else rows.producer()
        if node.op_type == "Sub" and any(_is_mean(v) for v in node.inputs):
            return source is None or source in float_nodes
        node = source
    return False


def _is_mean(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type == "ReduceMean"

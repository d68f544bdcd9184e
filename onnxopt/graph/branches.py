"""The branches of If."""

from __future__ import annotations

import onnx_ir as ir


def branches_of(node: ir.Node) -> list[ir.Graph]:
    """The branches of an If; none of other nodes."""
    if node.domain != "" or node.op_type != "If":
        return []
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]

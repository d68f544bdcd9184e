"""The nodes whose precision is chosen: those of the main graph, and of the branches of If, which run in its scope.

Bodies of Loop and Scan are left out: what rounding costs their state depends on how often they run.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def nodes_of(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of its branches, each behind those that compute its operands; If before its branches."""
    for node in graph:
        yield node
        for branch in branches_of(node):
            yield from nodes_of(branch)


def branches_of(node: ir.Node) -> list[ir.Graph]:
    """The branches of an If; none of other nodes."""
    if node.domain != "" or node.op_type != "If":
        return []
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]

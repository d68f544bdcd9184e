"""Removes the metadata that onnxscript's passes write on every node and value they create."""

from __future__ import annotations

import onnx_ir as ir

_ONNXSCRIPT_METADATA = "pkg.onnxscript."


def remove_onnxscript_metadata(model: ir.Model) -> None:
    """Remove metadata whose key begins with pkg.onnxscript, in place."""
    owners: list[ir.Node | ir.Value] = [v for graph in model.graphs() for v in graph.initializers.values()]
    for node in model.graph.all_nodes():
        owners += [node, *node.outputs]
    for owner in owners:
        for key in [key for key in owner.metadata_props if key.startswith(_ONNXSCRIPT_METADATA)]:
            del owner.metadata_props[key]

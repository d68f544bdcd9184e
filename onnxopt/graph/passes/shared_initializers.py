"""Merges initializers of the same value into one, without reading large ones."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

_COMPARED = 1024  # bytes; larger tensors count as equal only where they are the same range of the same file


class ShareInitializersPass(ir.passes.InPlacePass):
    """Replaces an initializer by an earlier one of its graph with equal dtype, shape and value.

    Initializers that are inputs or outputs stay. Names and metadata of the earlier one are kept.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for graph in model.graphs():
            first: dict[Hashable, ir.Value] = {}
            for value in tuple(graph.initializers.values()):
                key = _identity(value)
                if key is None:
                    continue
                shared = first.setdefault(key, value)
                if shared is not value and value.name is not None:
                    value.replace_all_uses_with(shared)
                    del graph.initializers[value.name]
                    modified = True
        return ir.passes.PassResult(model, modified)


def _identity(value: ir.Value) -> Hashable | None:
    """A key that equal initializers share, None where the value is not compared."""
    tensor = value.const_value
    if tensor is None or value.is_graph_input() or value.is_graph_output():
        return None
    kind = (tensor.dtype, tuple(tensor.shape.numpy()))
    if isinstance(tensor, ir.ExternalTensor):
        return (*kind, tensor.path, tensor.offset)
    if tensor.nbytes > _COMPARED:
        return None
    if tensor.dtype == ir.DataType.STRING:
        return (*kind, tuple(tensor.numpy().flat))
    return (*kind, tensor.tobytes())

"""Merges initializers of the same value into one, without reading large or lazy ones.

Exporters write masks and positions for each layer. Equal weights stay apart: rules that change a weight take one with
one reader.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Hashable

import onnx_ir as ir

_DIGEST = "onnxopt.digest"  # in a tensor's meta: the pass runs after each step of rewriting
# Bytes; larger tensors count as equal only where they are the same range of the same file.
_COMPARED, _COMPARED_FLOATS = 4 << 20, 1024


class ShareInitializersPass(ir.passes.InPlacePass):
    """Replaces an initializer by an earlier one of its graph with equal dtype, shape and value.

    Initializers that are inputs or outputs stay. Names and metadata of the earlier one are kept.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for graph in model.graphs():
            alike: dict[Hashable, list[ir.Value]] = collections.defaultdict(list)
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is not None and not value.is_graph_input() and not value.is_graph_output():
                    alike[tensor.dtype, tuple(tensor.shape.numpy())].append(value)
            for values in alike.values():
                modified |= len(values) > 1 and _merge(graph, values)
        return ir.passes.PassResult(model, modified)


def _merge(graph: ir.Graph, values: list[ir.Value]) -> bool:
    """Replace values by earlier ones that are equal. Returns whether there were any."""
    first: dict[Hashable, ir.Value] = {}
    for value in values:
        keys = _identities(value.const_value)
        shared = next((first[key] for key in keys if key in first), value)
        first |= {key: shared for key in keys if key not in first}
        if shared is not value and value.name is not None:
            value.replace_all_uses_with(shared)
            del graph.initializers[value.name]
    return any(value.name not in graph.initializers for value in values)


def _identities(tensor: ir.TensorProtocol | None) -> list[Hashable]:
    """Keys, any of which equal tensors of one dtype and shape share; none where a tensor is not compared."""
    assert tensor is not None
    keys: list[Hashable] = [(tensor.path, tensor.offset)] if isinstance(tensor, ir.ExternalTensor) else []
    if tensor.dtype == ir.DataType.STRING:
        return [*keys, tuple(tensor.numpy().flat)]
    most = _COMPARED_FLOATS if tensor.dtype.is_floating_point() else _COMPARED
    if isinstance(tensor, ir.LazyTensor) or tensor.nbytes > most:
        return keys
    if _DIGEST not in tensor.meta:
        tensor.meta[_DIGEST] = hashlib.sha256(tensor.tobytes()).digest()
    return [*keys, tensor.meta[_DIGEST]]

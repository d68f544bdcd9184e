"""Dims whose symbol is a number, such as "16", become dims of that size.

The exporter of transformers names the dims of a dynamic export that are fixed all the same by their sizes. "0" stays a
symbol: no tensor of a model is always empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxopt.graph import external_data

_LARGEST = 2**63 - 1  # what ONNX stores


def fix(proto: onnx.ModelProto) -> None:
    """Fix such dims of all declared values of the main graph and of the bodies inside it, in place."""
    for graph in external_data.graphs_of(proto):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in _dims(value.type):
                text = dim.dim_param
                if text.isascii() and text.isdecimal() and 1 <= int(text) <= _LARGEST:
                    dim.dim_value = int(text)


def _dims(type_proto: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    kind = type_proto.WhichOneof("value")
    if kind == "tensor_type":
        yield from type_proto.tensor_type.shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from _dims(getattr(type_proto, kind).elem_type)

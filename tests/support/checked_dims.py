"""Inferred dims and contents of a model's values, held against what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import sympy

from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes.dims import Dim

_Sizes = Mapping[str, int]


def _number(dim: Dim, sizes: _Sizes) -> int | None:
    """What a dim is at these sizes; None where it holds a symbol that nothing is known of."""
    if isinstance(dim, int):
        return dim
    known = dim.subs({s: sizes[s.name] for s in dim.free_symbols if s.name in sizes})
    return int(known) if known.is_Integer else None


def every_value(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value that a node of the main graph computes, by ONNX Runtime without optimizations."""
    ir.external_data.load_to_model(model)
    proto = ir.to_proto(model)
    known = {o.name for o in proto.graph.output}
    names = [o for n in proto.graph.node for o in n.output if o and o not in known]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, dict(feeds))
    return {o.name: v for o, v in zip(session.get_outputs(), found, strict=True) if isinstance(v, np.ndarray)}


class Dims(NamedTuple):
    """How many dims of a model's values were compared with a run, and how many no number is known for."""

    compared: int
    unknown: int


def check(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> Dims:
    """Hold every inferred dim and content against a run."""
    known = infer.infer(model)
    sizes: dict[str, int] = {}
    for v in model.graph.inputs:
        for dim, number in zip(known.dims(v) or (), feeds[v.name].shape if v.name in feeds else (), strict=False):
            if isinstance(dim, sympy.Symbol):
                sizes[dim.name] = number
    found, compared, unknown = every_value(model, feeds), 0, 0
    for node in model.graph:
        for v in node.outputs:
            if v.name not in found:
                continue
            actual = found[v.name]
            if (dims := known.dims(v)) is None:
                unknown += actual.ndim
                continue
            assert len(dims) == actual.ndim, f"{v.name} of {node.op_type}: {dims} is {actual.shape}"
            for dim, number in zip(dims, actual.shape, strict=True):
                assert _number(dim, sizes) in (None, number), f"{v.name} of {node.op_type}: {dims} is {actual.shape}"
                compared += _number(dim, sizes) is not None
                unknown += _number(dim, sizes) is None
            assert known.type(v) is None or known.type(v).dtype.numpy() == actual.dtype, v.name
            for expected, element in zip([] if (h := known.contents(v)) is None else h.flat, actual.flat, strict=False):
                assert _number(expected, sizes) in (None, int(element)), f"{v.name} of {node.op_type} holds {actual}"
    return Dims(compared, unknown)

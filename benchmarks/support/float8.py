"""Exported graphs of float16 with e4m3 codes around their products with weights."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support import skeletons
from benchmarks.support.torch_peers import graph_of

_LARGEST = 448.0
_MIN, _MULTIPLE = 256, 16  # sides of a weight
_E4M3 = ml_dtypes.float8_e4m3fn
_VIEWS = ("Reshape", "Transpose")
_LARGE = 2048  # sides of a weight


def products(model: onnx.ModelProto, projections: bool) -> list[onnx.NodeProto]:
    """The products with a weight that are quantized: all that are large, but not the last layer.

    projections: also smaller ones behind attention, whose codes take a kernel of their own.
    """
    weights = {t.name: t.dims for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16}
    last = {output.name for output in model.graph.output}
    found = [n for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and n.input[1] in weights]
    taken = [n for n in found if n.output[0] not in last and all(map(_fits, weights[n.input[1]]))]
    makers = {output: n for n in model.graph.node for output in n.output}

    def is_behind_attention(node: onnx.NodeProto) -> bool:
        maker = makers.get(node.input[0])
        while maker is not None and maker.op_type in _VIEWS:
            maker = makers.get(maker.input[0])
        return maker is not None and maker.op_type == "MatMul" and maker.input[1] not in weights

    return [n for n in taken if projections or min(weights[n.input[1]]) >= _LARGE or not is_behind_attention(n)]


def _fits(side: int) -> bool:
    return side >= _MIN and side % _MULTIPLE == 0


def ranges(name: str) -> dict[str, float]:
    """The largest magnitude of every activation that is quantized, from one run on the CPU.

    NAME@SIZES: of the dynamic graph, with a batch of one.
    """
    exported, sizes = graph_of(name)
    model = skeletons.original(exported)
    given = skeletons.sample_inputs(model, exported, **(sizes and {**sizes, "batch": 1}))
    names = sorted({n.input[0] for n in products(model, True)})
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return {x: float(np.abs(y.astype(np.float32)).max()) for x, y in zip(names, session.run(names, given), strict=True)}


def quantized(source: onnx.ModelProto, largest: Mapping[str, float], *, projections: bool = True) -> onnx.ModelProto:
    """A float16 graph with Q and DQ. largest: of `ranges`. Weights of one activation share a scale."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    taken = {n.name or n.output[0]: n for n in products(model, projections)}
    tensors = {t.name: t for t in model.graph.initializer}
    of_weights: dict[str, float] = {}
    for node in taken.values():
        top = float(np.abs(numpy_helper.to_array(tensors[node.input[1]])).max())
        of_weights[node.input[0]] = max(of_weights.get(node.input[0], 0.0), top)
    nodes: list[onnx.NodeProto] = []
    done: set[str] = set()
    zero = numpy_helper.from_array(np.zeros((), _E4M3), "zero_of_codes")
    model.graph.initializer.append(zero)
    for node in list(model.graph.node):
        if (node.name or node.output[0]) in taken:
            x, w = node.input[:2]
            for value in (x, w):
                least = (largest[x] if value == x else of_weights[x]) / _LARGEST
                scale = np.float16(2.0 ** np.ceil(np.log2(least)))  # as `quantize` chooses it
                if value not in done:
                    nodes += _coded(model.graph, tensors, value, scale)
                    done.add(value)
            node.input[0], node.input[1] = f"{x}_numbers", f"{w}_numbers"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _coded(
    graph: onnx.GraphProto, tensors: Mapping[str, onnx.TensorProto], value: str, scale: np.float16
) -> list[onnx.NodeProto]:
    """Q and DQ of a value; of a constant the codes and DQ."""
    names = [f"{value}_scale", "zero_of_codes"]
    graph.initializer.append(numpy_helper.from_array(np.asarray(scale), names[0]))
    codes = f"{value}_codes"
    dequantize = helper.make_node("DequantizeLinear", [codes, *names], [f"{value}_numbers"], f"{value}_DQ")
    if value not in tensors:
        return [helper.make_node("QuantizeLinear", [value, *names], [codes], f"{value}_Q"), dequantize]
    numbers = numpy_helper.to_array(tensors[value]).astype(np.float32) / np.float32(scale)
    made = np.clip(numbers, -_LARGEST, _LARGEST).astype(_E4M3)
    tensor = TensorProto(name=codes, data_type=TensorProto.FLOAT8E4M3FN, dims=made.shape, raw_data=made.tobytes())
    graph.initializer.append(tensor)
    graph.initializer.remove(tensors[value])
    return [dequantize]

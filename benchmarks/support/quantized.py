"""BERT-base with 8-bit codes as ONNX Runtime's quantizer writes it, without the bytes of its weights."""

from __future__ import annotations

import contextlib
import json
import logging
import lzma
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks.support import skeletons

SCHEMES = ("every_operator", "linear_layers")
_KEEP_BELOW = 64 << 10  # bytes; smaller tensors travel as they are
_DRAWN = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8)
_DEVIATION = 25  # of codes of normal weights, whose largest is near 127
_MIDDLE = 128  # of uint8


def quantized(scheme: str) -> onnx.ModelProto:
    """The graph after onnxruntime.quantization.quantize_static, with weights of the float16 skeleton.

    every_operator: the graph in float32, with the tool's defaults: Q and DQ around everything that it knows.
    linear_layers: the graph in float16, with Q and DQ around the products with weights, and not behind them.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization import QuantFormat

    source = skeletons.original("bert")
    options: dict[str, Any] = {"quant_format": QuantFormat.QDQ}
    if scheme == "every_operator":
        _widen(source)
    else:
        weights = {i.name for i in source.graph.initializer}
        products = [n for n in source.graph.node if n.op_type == "MatMul"]
        options["nodes_to_exclude"] = [n.name for n in products if not weights & set(n.input)]
        options["op_types_to_quantize"] = ["MatMul", "Gemm"]
        symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True}
        options["extra_options"] = {"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"], **symmetric}
    with tempfile.TemporaryDirectory() as name, _inside(pathlib.Path(name)):
        onnx.save(source, "source.onnx")
        feeds = iter([skeletons.sample_inputs(source, "bert")])
        reader = type("Reader", (quantization.CalibrationDataReader,), {"get_next": lambda self: next(feeds, None)})
        quantization.quantize_static("source.onnx", "quantized.onnx", reader(), **options)
        return onnx.load("quantized.onnx")


@contextlib.contextmanager
def _inside(folder: pathlib.Path) -> Iterator[None]:
    """The tool writes into the current folder, and logs every node that it leaves."""
    before = pathlib.Path.cwd()
    os.chdir(folder)
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.chdir(before)


def _widen(model: onnx.ModelProto) -> None:
    """Make a float16 graph one of float32, in place."""
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.t.data_type == TensorProto.FLOAT16:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))


def pack(model: onnx.ModelProto, path: pathlib.Path) -> None:
    """Write a quantized graph to `path` (.onnx.xz) without its large weights, which it loses."""
    emptied = {}
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= _KEEP_BELOW and tensor.data_type in _DRAWN:
            emptied[tensor.name] = [list(tensor.dims), tensor.data_type]
            tensor.ClearField("raw_data")
    path.write_bytes(lzma.compress(model.SerializeToString(), preset=9))
    path.with_suffix("").with_suffix(".json").write_text(json.dumps(emptied))


def unpack(path: pathlib.Path, seed: int = 0) -> onnx.ModelProto:
    """The graph that `pack` wrote, with drawn weights: the same ones in every call."""
    model = onnx.load_from_string(lzma.decompress(path.read_bytes()))
    emptied = json.loads(path.with_suffix("").with_suffix(".json").read_text())
    rng = np.random.default_rng(seed)
    for tensor in (t for t in model.graph.initializer if t.name in emptied):
        dims, data_type = emptied[tensor.name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(data_type)
        drawn = rng.standard_normal(dims, dtype=np.float32)
        if np.issubdtype(dtype, np.floating):
            value = drawn * 0.02
        else:
            info = np.iinfo(dtype)
            middle = _MIDDLE if info.min == 0 else 0
            value = np.clip(np.rint(drawn * _DEVIATION) + middle, max(info.min, -127), info.max)
        tensor.raw_data = value.astype(dtype).tobytes()
    return model

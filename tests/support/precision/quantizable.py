"""A float32 model with products to quantize, and inputs to calibrate with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTH = 256


def write(folder: Path) -> Path:
    """network.onnx, two products with a norm behind and a classifier as Gemm; calibrate0.npz and calibrate1.npz."""
    draw = np.random.default_rng(0)

    def weight(name: str, *dims: int) -> onnx.TensorProto:
        return numpy_helper.from_array((draw.standard_normal(dims) * 0.06).astype(np.float32), name)

    graph = onnx.parser.parse_graph("""
        network (float[batch, 8, 256] x) => (float[batch, 320] y) <int64[1] axes = {1}> {
          [up] a = MatMul(x, w1)
          b = Add(a, b1)
          c = Gelu(b)
          [down] d = MatMul(c, w2)
          e = Add(d, x)
          f = LayerNormalization(e, scale, shift)
          p = ReduceMean<keepdims = 0>(f, axes)
          [head] y = Gemm<transB = 1>(p, w3, b3)
        }
    """)
    dims = {"w1": (WIDTH, 512), "b1": (512,), "w2": (512, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,)}
    graph.initializer.extend(weight(*row) for row in [(n, *d) for n, d in dims.items()])
    graph.initializer.extend([weight("w3", 320, WIDTH), weight("b3", 320)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "network.onnx")
    for k in range(2):
        np.savez(folder / f"calibrate{k}.npz", x=draw.standard_normal((4, 8, WIDTH)).astype(np.float32))
    return folder / "network.onnx"

"""Models whose run does not end, or not soon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# The Loop ends where each element is above 3, to which a round adds that of x: with zeros never.
LOOP = """
<ir_version: 8, opset_import: ["": 17]>
loops (float[4] x) => (float[1, 4] y) <float three = {3.0}, float infinity = {inf}, int64[1] first = {0},
  int64 most = {9223372036854775807}, bool true = {1},
  float[4, 4] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}> {
  size = Abs (x)
  z = Loop (most, true, x) <body = body (int64 i, bool c, float[4] a) => (bool co, float[4] ao) {
    ao = Add (a, size)
    smallest = ReduceMin <keepdims = 0> (ao)
    co = Less (smallest, THREE)
  }>
  e = Exp (z)
  row = Unsqueeze (e, first)
  t = Tanh (row)
  y = MatMul (t, w)
}
"""


def loop(path: Path, *, ends: bool = False, constant: bool = False) -> Path:
    """A model whose run never ends, or ends unless an element of x is 0. constant: the Loop reads constants alone."""
    text = LOOP.replace("THREE", "three" if ends else "infinity")
    if constant:
        text = text.replace("y = MatMul", "t1 = Add (t, x) y = MatMul").replace("(t, w)", "(t1, w)")
        text = text.replace("Loop (most, true, x)", "Loop (most, true, fixed)").replace("Abs (x)", "Abs (fixed)")
        text = text.replace("float three", "float[4] fixed = {1, 2, 3, 4}, float three")
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def long_operator(path: Path) -> Path:
    """A model of one operator that takes minutes: which of 200,000 boxes overlap."""
    count = 200_000
    left = np.arange(count, dtype=np.float32)
    boxes = np.stack([left, 0 * left, left + 0.5, 0 * left + 1], axis=1)[None]
    nodes = [
        helper.make_node("Add", ["boxes", "x"], ["moved"]),
        helper.make_node("NonMaxSuppression", ["moved", "scores", "most"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["found", 3])
    constants = {"boxes": boxes, "scores": np.ones((1, 1, count), np.float32), "most": np.array([count])}
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "boxes", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path

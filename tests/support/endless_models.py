"""A model whose run does not end."""

from __future__ import annotations

from pathlib import Path

import onnx

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

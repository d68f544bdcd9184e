"""Small models, written as text: optimizing one takes milliseconds."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'

# One region of four nodes, a MatMul that nothing fuses with, and a second, different region.
CHAIN = """
chain (float[batch, 8] x, float[8] bias, float[8, 8] weight) => (float[batch, 8] y) {
  a = Add(x, bias)
  b = Tanh(a)
  c = Mul(b, x)
  d = Sub(c, a)
  e = MatMul(d, weight)
  f = Sigmoid(e)
  y = Mul(f, e)
}
"""
NOTHING_TO_FUSE = "plain (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { y = MatMul(x, w) }"
TOKENS = """
tokens (int64[batch, sequence] ids) => (float[batch, sequence, 2] y)
<float[3, 2] table = {1, 2, 3, 4, 5, 6}> { y = Gather(table, ids) }
"""
RANDOM = """
random (float[n] x) => (float[n] y) {
  z = RandomNormalLike(x)
  a = Add(x, z)
  b = Tanh(a)
  y = Mul(b, x)
}
"""
NO_KERNEL = (
    '<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]> g (float[2] x) => (float[2] y) { y = nowhere.Op(x) }'
)


def write(path: Path, text: str) -> Path:
    """Save a model given as onnx's text; the header is added where the text has none."""
    model = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)
    onnx.save(model, path)
    return path

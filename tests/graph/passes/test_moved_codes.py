"""Codes move in place of the numbers that they stand for, and numbers that become the same codes again are gone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from tests.support.graphs import graph, run

_CONSTANTS = (
    "float s = {0.03}, float[1] s1 = {0.03}, float t = {0.05}, float below = {-0.5}, uint8 z = {120}, uint8 w = {3}, "
    "uint16 wide = {300}, "
    "int8 i = {0}, int64[2] half = {2, 2}, int64[1] flat = {-1}, int64[1] b = {0}, int64[1] e = {2}, "
    "int64[1] a = {1}, float[4] sc = {0.1, 0.2, 0.3, 0.4}, uint8[4] zc = {1, 2, 3, 4}, "
    "uint8[5, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 255}"
)
_X = "float[N, 4] x"
_U = "uint8[N, 4] u"
# name: inputs, dtype and dims of y, body, the operators that are left
CASES = {
    "there and back": (_U, "uint8[4, N]",
                       "f = DequantizeLinear(u, s, z)  q = QuantizeLinear(f, s, z)  y = Transpose(q)", "Transpose"),
    "one element": (_U, "float[N, 4]",
                    "f = DequantizeLinear(u, s, z)  q = QuantizeLinear(f, s1, z)  y = DequantizeLinear(q, s, z)",
                    "DequantizeLinear"),
    "int8, whose pairs stay together": (
        _X, "float[4, N]",
        "q = QuantizeLinear(x, s, i)  f = DequantizeLinear(q, s, i)  t1 = Transpose(f)  r = QuantizeLinear(t1, s, i)  "
        "y = DequantizeLinear(r, s, i)", "QuantizeLinear DequantizeLinear Transpose QuantizeLinear DequantizeLinear"),
    "another scale": (_U, "float[N, 4]",
                      "f = DequantizeLinear(u, s, z)  q = QuantizeLinear(f, t, z)  y = DequantizeLinear(q, t, z)",
                      "DequantizeLinear QuantizeLinear DequantizeLinear"),
    "another zero point": (_U, "float[N, 4]",
                           "f = DequantizeLinear(u, s, z)  q = QuantizeLinear(f, s, w)  y = DequantizeLinear(q, s, w)",
                           "DequantizeLinear QuantizeLinear DequantizeLinear"),
    "another dtype": (_U, "float[N, 4]",
                      "f = DequantizeLinear(u, s)  q = QuantizeLinear(f, s, i)  y = DequantizeLinear(q, s, i)",
                      "DequantizeLinear QuantizeLinear DequantizeLinear"),
    "a scale below 0": (_U, "float[N, 4]",
                     "f = DequantizeLinear(u, below, z)  q = QuantizeLinear(f, below, z)  "
                      "y = DequantizeLinear(q, t, z)",
                     "DequantizeLinear QuantizeLinear DequantizeLinear"),
    "channels": (_U, "float[4, N]", "f = DequantizeLinear(u, sc, zc)  y = Transpose(f)", "DequantizeLinear Transpose"),
    "a view between": (_X, "float[4, N]",
                       "q = QuantizeLinear(x, s, z)  f = DequantizeLinear(q, s, z)  t1 = Transpose(f)  "
                       "r = QuantizeLinear(t1, s, z)  y = DequantizeLinear(r, s, z)",
                       "QuantizeLinear Transpose DequantizeLinear"),
    "quantized behind a view": (_X, "uint8[4, N]", "r = Relu(x)  t1 = Transpose(r)  y = QuantizeLinear(t1, s, z)",
                                "Relu QuantizeLinear Transpose"),
    "read twice": (_X, "float[4, N]",
                   "r = Relu(x)  t1 = Transpose(r)  q = QuantizeLinear(t1, s, z)  f = DequantizeLinear(q, s, z)  "
                   "y = Add(f, t1)", "Relu Transpose QuantizeLinear DequantizeLinear Add"),
    "the number is read too": (_U, "float[N, 4]",
                               "f = DequantizeLinear(u, s, z)  g = Reshape(f, flat)  m = ReduceMax<keepdims = 0>(g)  "
                               "h = Abs(f)  y = Add(m, h)",
                               "DequantizeLinear Reshape ReduceMax Abs Add"),
    "a table": ("int64[N] n", "float[N, 4]", "f = DequantizeLinear(table, s, z)  g = Gather(f, n)  y = Neg(g)",
                "Gather DequantizeLinear Neg"),
    "a part": (_U, "float[N, 2]",
               "f = DequantizeLinear(u, s, z)  g = Slice(f, b, e, a)  h = ReduceMax(f, a)  y = Add(g, h)",
               "Slice DequantizeLinear DequantizeLinear ReduceMax Add"),
    "parts": (_U, "float[N, 2]",
              "f = DequantizeLinear(u, s, z)  g, h = Split<axis = 1>(f, half)  k = Neg(h)  y = Mul(g, k)",
              "Split DequantizeLinear DequantizeLinear Neg Mul"),
    "joined": (_U, "uint8[8, N]",
               "f = DequantizeLinear(u, s, z)  v = Identity(u)  m = Max(v, z)  g = DequantizeLinear(m, s, z)  "
               "c = Concat<axis = 1>(f, g)  q = QuantizeLinear(c, s, z)  y = Transpose(q)",
               "Max Concat Transpose"),
    "joined of two scales": (_U, "float[N, 8]",
                             "f = DequantizeLinear(u, s, z)  g = DequantizeLinear(u, t, z)  y = Concat<axis = 1>(f, g)",
                             "DequantizeLinear DequantizeLinear Concat"),
    "equal ones": (_X, "float[N, 4]",
                   "q = QuantizeLinear(x, s, z)  r = QuantizeLinear(x, s, z)  f = DequantizeLinear(q, s, z)  "
                   "g = DequantizeLinear(r, s, z)  h = Neg(f)  y = Mul(g, h)",
                   "QuantizeLinear DequantizeLinear Neg Mul"),
    "of com.microsoft": (_X, "float[4, N]",
                         "q = com.microsoft.QuantizeLinear(x, s, wide)  "
                         "f = com.microsoft.DequantizeLinear(q, s, wide)  "
                         "t1 = Transpose(f)  r = com.microsoft.QuantizeLinear(t1, s, wide)  "
                         "y = com.microsoft.DequantizeLinear(r, s, wide)",
                         "QuantizeLinear Transpose DequantizeLinear"),
    "an output": (_U, "uint8[N, 4]", "f = DequantizeLinear(u, s, z)  y = QuantizeLinear(f, s, z)",
                  "DequantizeLinear QuantizeLinear"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules_and_results(case: str) -> None:
    inputs, result, body, left = CASES[case]
    model = graph(inputs, f"{result} y", body, constants=_CONSTANTS, opset=20, contrib=True)
    before = model.clone()
    after = normalize.normalize(model).model
    found = [node.op_type for node in after.graph]
    assert sorted(found) == sorted(left.split()), found
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.standard_normal((7, 4)).astype(np.float32) * 3,
        "u": rng.integers(0, 256, (7, 4)).astype(np.uint8),
        "n": np.array([4, 0, 3, 3, 1]),
    }
    feeds = {v.name: feeds[v.name] for v in before.graph.inputs}
    np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])


@pytest.mark.parametrize(
    ("dtype", "codes", "scales"),
    [
        ("float", "int8", 0), ("float", "uint8", 7), ("float", "int16", 7), ("float", "uint16", 7),
        ("float16", "uint8", 6),  # 250 * 255 is within float16, 250 * 256 and more is not
        ("float16", "int16", 0),
    ],
)  # fmt: skip
def test_what_is_dropped_gave_every_code_again(dtype: str, codes: str, scales: int) -> None:
    info, storage = np.iinfo(codes), np.float16 if dtype == "float16" else np.float32
    every = np.arange(info.min, info.max + 1).astype(codes)
    dropped = 0
    for scale in (0.1, 1 / 255, 3.3e-5, 6e-8, 1.7, 100.0, 250.0):
        body = "f = DequantizeLinear(u, s, z)  q = QuantizeLinear(f, s, z)  y = Concat<axis = 0>(q, q)"
        constants = f"{dtype} s = {{1}}, {codes} z = {{{3 if info.min == 0 else -3}}}"
        model = graph(f"{codes}[N] u", f"{codes}[M] y", body, constants=constants, opset=21)
        model.graph.initializers["s"].const_value = ir.tensor(np.asarray(scale, storage), name="s")
        before = model.clone()
        if "QuantizeLinear" not in {node.op_type for node in normalize.normalize(model).model.graph}:
            dropped += 1
            np.testing.assert_array_equal(run(before, {"u": every})[0], np.tile(every, 2))
    assert dropped == scales

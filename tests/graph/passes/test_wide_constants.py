"""Constants that 16-bit floats compute are as exact as one rounding of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from tests.support import graphs

_NORMED = """
  norm = ReduceL2 <keepdims = 1> (w, axes)
  factor = Div (g, norm)
  scaled = Mul (w, factor)
  y = MatMul (x, scaled)
"""


def _weight(model: ir.Model) -> np.ndarray:
    (product,) = (node for node in model.graph if node.op_type == "MatMul")
    constant = product.inputs[1].const_value
    assert constant is not None
    return constant.numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_weight_norm_is_rounded_once(dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs = f"{dtype}[n, 512] x, {dtype}[512, 64] w, {dtype}[1, 64] g"
    model = graphs.graph(inputs, f"{dtype}[n, 64] y", _NORMED, constants="int64[1] axes = {0}")
    stored = ir.DataType[dtype.upper()].numpy()
    given = {"w": rng.standard_normal((512, 64)).astype(stored), "g": rng.uniform(1, 2, (1, 64)).astype(stored)}
    graphs.hold(model, given, stored)
    normalize.normalize(model)
    assert [node.op_type for node in model.graph] == ["MatMul"]
    w, g = (given[name].astype(np.float64) for name in "wg")
    expected = w * (g / np.sqrt((w * w).sum(axis=0, keepdims=True)))
    same = _weight(model) == expected.astype(stored)
    assert same.mean() > 0.999  # float32 lies beyond the middle between two of them now and then


def test_a_cast_rounds_where_the_graph_asks_for_it() -> None:
    lines = "low = Cast <to = 10> (c)  high = Cast <to = 1> (low)  y = Add (x, high)"
    model = graphs.graph("float[n, 1] x", "float[n, 1] y", lines, constants="float[1] c = {0.1}")
    normalize.normalize(model)
    assert [node.op_type for node in model.graph] == ["Add"]
    found = model.graph[0].inputs[1].const_value
    assert found is not None and found.numpy().ravel()[0] == np.float32(np.float16(0.1))


def test_a_large_product_of_constants_is_summed_in_float32() -> None:
    model = graphs.graph(
        "float16[4, 8] x, float16[300, 512] a, float16[512, 8] b", "float16[304, 8] y",
        "p = MatMul (a, b)  y = Concat <axis = 0> (p, x)",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    given = {"a": rng.standard_normal((300, 512)), "b": rng.standard_normal((512, 8))}
    graphs.hold(model, given, np.float16)
    normalize.normalize(model)
    assert [node.op_type for node in model.graph] == ["Concat"]
    found = model.graph[0].inputs[0].const_value
    a, b = (given[name].astype(np.float16).astype(np.float64) for name in "ab")
    assert found is not None and (found.numpy() == (a @ b).astype(np.float16)).mean() > 0.99

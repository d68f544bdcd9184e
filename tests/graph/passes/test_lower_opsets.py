"""Newer models are lowered to opset 20 where it has all their operators in their dtypes."""

from __future__ import annotations

import pytest

from onnxopt.graph import normalize
from tests.support.graphs import graph


@pytest.mark.parametrize(
    ("inputs", "body", "opset", "reached"),
    [
        ("float[N, 3, 8, 8] x", "y = MaxPool<kernel_shape = [2, 2]>(x)", 22, 20),  # no CUDA kernel at 22
        ("float[N, 3, 8, 8] x", "y = AveragePool<kernel_shape = [2, 2]>(x)", 24, 20),
        ("float[N] x", "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)", 23, 20),
        ("float[4] x", "q = QuantizeLinear<axis = 0, block_size = 2>(x, s2, z2)  y = DequantizeLinear<axis = 0, "
         "block_size = 2>(q, s2, z2)", 22, 22),
        ("float[N] x", "i = Cast<to = 7>(x)  y = Cast<to = 1>(i)", 24, 20),
        ("float[N] x", "y = QuantizeLinear<output_dtype = 3>(x, s)", 22, 22),
        ("bfloat16[N, 1, 3, 3] x, bfloat16[1, 1, 2, 2] w", "y = Conv(x, w)", 22, 22),
        ("bfloat16[N, 3] x, bfloat16[3, 3] w", "y = MatMul(x, w)", 22, 20),
    ],
)  # fmt: skip
def test_newer_models_are_lowered_to_opset_20_where_it_has_all_of_them(
    inputs: str, body: str, opset: int, reached: int
) -> None:
    constants = "float s = {0.5}, int8 z = {3}, float[2] s2 = {0.5, 0.25}, int8[2] z2 = {3, 2}"
    model = graph(inputs, "float[] y", body, constants=constants, opset=opset)
    assert normalize.normalize(model).model.opset_imports[""] == reached


def test_convolutions_that_will_be_bfloat16_keep_opset_22() -> None:
    model = graph("float[N, 1, 3, 3] x, float[1, 1, 2, 2] w", "float[] y", "y = Conv(x, w)", opset=22)
    assert normalize.normalize(model.clone(), lowest_opset=22).model.opset_imports[""] == 22
    assert normalize.normalize(model).model.opset_imports[""] == 20

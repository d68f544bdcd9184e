"""The cost model: floating-point operations of convolutions and products."""

from __future__ import annotations

import pytest

from onnxopt.fusion import cost
from onnxopt.graph.shapes import shapes as shape_inference
from tests.support.graphs import graph, value


@pytest.mark.parametrize(
    ("inputs", "body", "flops"),
    [
        ("float[2, 8, 10, 12] x, float[16, 8, 3, 3] w", "y = Conv(x, w)", 2 * (2 * 16 * 8 * 10) * (8 * 9)),
        ("float[2, 8, 10, 12] x, float[8, 1, 3, 3] w", "y = Conv<group = 8>(x, w)", 2 * (2 * 8 * 8 * 10) * 9),
        ("float[2, 8, 5, 6] x, float[8, 4, 2, 2] w", "y = ConvTranspose<strides = [2, 2]>(x, w)", 2 * 480 * 16),
        ("float[3, 5, 4] x, float[4, 6] w", "y = MatMul(x, w)", 2 * (3 * 5 * 6) * 4),
        ("float[4, 5] x, float[4, 6] w", "y = Gemm<transA = 1>(x, w)", 2 * (5 * 6) * 4),
        ("float[4, 5] x, float[4, 5] w", "y = Add(x, w)", 0),
        ("float[n, 5] x, float[5, 6] w", "y = MatMul(x, w)", None),
    ],
)
def test_floating_point_operations(inputs: str, body: str, flops: int | None) -> None:
    model = graph(inputs, "float[] y", body)
    shapes = shape_inference.infer(model)
    (node,) = model.graph
    operands = [v for v in node.inputs if v is not None]
    assert cost.region_traffic([node], operands, node.outputs, shapes).flops == flops


def test_a_view_has_as_many_elements_as_what_it_is_of() -> None:
    model = graph(
        "float[n, s, 8] x", "float[] z", "r = Reshape(x, flat) t = Transpose<perm = [1, 0]>(r) z = Expand(r, more)",
        constants="int64[2] flat = {-1, 2}, int64[3] more = {3, 1, 1}",
    )  # fmt: skip
    shapes = shape_inference.infer(model)
    x, t, z = (value(model, name) for name in "xtz")
    assert not cost.grows(x, t, shapes)
    assert not cost.grows(t, x, shapes)
    assert cost.grows(x, z, shapes)

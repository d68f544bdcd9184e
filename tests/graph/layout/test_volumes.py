"""Convolutions of three dims in channels last: their form, and what stays so around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt.fusion import channels_last
from onnxopt.graph.layout import is_channels_last
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.program.window import Depth
from tests.graph.layout.test_layout import borders, laid_out, model, ops, same

INPUT = "float[N, 8, 5, 6, 7] x"
WEIGHTS = "float[8,8,3,3,3] w, float[8,8,1,3,3] s, float[8,1,1,3,3] d, float[8,8,1,1,1] p, float[8] b"


@pytest.mark.parametrize(
    ("conv", "stored", "order", "depth"),
    [
        ("Conv<pads=[1,1,1,1,1,1]>(x, w, b)", (8, 3, 3, 3, 8), channels_last.KTRSC, Depth(3, 1, 1, 1, 1)),
        ("Conv<strides=[1,2,2], pads=[0,1,0,0,1,0]>(x, s, b)", (8, 3, 3, 8), channels_last.KRSC, None),
        ("Conv<strides=[2,1,1]>(x, s)", (8, 1, 3, 3, 8), channels_last.KTRSC, Depth(1, 2)),
        ("Conv<group=8>(x, d)", (3, 3, 1, 8), channels_last.RSK, None),
        ("Conv(x, p, b)", (8, 8), (), None),
        ("Conv<strides=[2,2,2]>(x, p)", (8, 8), (), Depth(1, 2)),
        ("ConvTranspose<strides=[2,1,1], output_padding=[1,0,0]>(x, w)", (8, 3, 3, 3, 8), channels_last.KTRSC,
         Depth(3, 2)),
        ("ConvTranspose<strides=[1,2,2]>(x, s)", (8, 3, 3, 8), channels_last.KRSC, None),
    ],
)  # fmt: skip
def test_the_normal_form_of_volumes(
    conv: str, stored: tuple[int, ...], order: tuple[int, ...], depth: Depth | None, tmp_path: Path
) -> None:
    """Where no window goes over the depth, the weight is one of an image."""
    source = model(f"y = {conv}", INPUT, weights=WEIGHTS)
    found, count = laid_out(source, tmp_path)
    assert count == 1
    (convolution,) = (n for n in found.graph if n.op_type in channels_last.CONVOLUTIONS)
    sandwich = channels_last.sandwich(convolution, shape_inference.infer(found))
    assert not isinstance(sandwich, str), sandwich
    assert sandwich.w.const_value is not None and sandwich.window is not None
    assert sandwich.w.const_value.shape.numpy() == stored
    assert (sandwich.weight_order, sandwich.window.depth) == (order, depth)
    assert sandwich.depth_padding == ("output_padding" in conv)
    assert is_channels_last(sandwich.x) and is_channels_last(sandwich.y)
    same(source, found, 2)


@pytest.mark.parametrize(
    "between",
    [
        "v = LeakyRelu(a)",
        "v = MaxPool<kernel_shape=[2,3,3], pads=[0,1,1,1,1,1]>(a)",
        'v = Resize<mode="nearest">(a, , scales)',
        "m = GlobalAveragePool(a) g = Sigmoid(m) v = Mul(a, g)",
        "v = InstanceNormalization(a, b, b)",
        "r = Reshape(a, groups) n = InstanceNormalization(r, q, q) h = Shape(a) v = Reshape(n, h)",
        "v = Concat<axis=1>(a, a)",
        "v = ConvTranspose<strides=[2,2,2]>(a, w)",
        "v = Add(a, k)",
    ],
)
def test_volumes_stay_in_channels_last_between_convolutions(between: str, tmp_path: Path) -> None:
    constants = "float[5] scales = {1, 1, 2, 2, 2}, int64[3] groups = {0, 4, -1}"
    channels = 16 if "Concat" in between else 8
    weights = f"{WEIGHTS}, float[4] q, float[8,1,1,1] k, float[8,{channels},1,3,3] z"
    body = f"a = Conv<pads=[1,1,1,1,1,1]>(x, w) {between} y = Conv(v, z, b)"
    source = model(body, INPUT, weights=weights, constants=constants)
    found, _ = laid_out(source, tmp_path)
    assert sorted(borders(found)) == ["x", "y"]
    same(source, found, 2)


def test_tokens_of_volumes_need_no_transpose(tmp_path: Path) -> None:
    body = (
        "a = Conv(x, p) f = Reshape(a, flat) t = Transpose<perm=[0,2,1]>(f) m = MatMul(t, k) "
        "z = Transpose<perm=[0,2,1]>(m) r = Reshape(z, back) y = Conv(r, p)"
    )
    constants = "int64[3] flat = {0, 8, -1}, int64[5] back = {0, 8, 5, 6, 7}"
    source = model(body, INPUT, constants=constants, weights=WEIGHTS + ", float[8,8] k")
    found, count = laid_out(source, tmp_path)
    assert count == 2 and sorted(borders(found)) == ["x", "y"]
    same(source, found, 2)


@pytest.mark.parametrize(
    ("conv", "weight"),
    [
        ("Conv<group=2>(x, w)", "float[8,4,3,3,3] w"),
        ("Conv<group=8>(x, w)", "float[8,1,3,1,1] w"),
        ("ConvTranspose<group=8>(x, w)", "float[8,1,1,3,3] w"),
        ("ConvTranspose<output_shape=[12,12,12]>(x, w)", "float[8,8,3,3,3] w"),
    ],
)
def test_groups_over_a_depth_stay(conv: str, weight: str, tmp_path: Path) -> None:
    """No kernel for them was measured, and ONNX Runtime's computes output_shape."""
    source = model(f"y = {conv}", INPUT, weights=weight)
    found, count = laid_out(source, tmp_path)
    assert count == 0 and ops(found) == ops(source)

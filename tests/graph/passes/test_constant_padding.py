"""Constant padding goes into the convolution or pool that reads it, where that changes no result."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from onnxopt.graph.passes.padding.constant_padding import ConstantPaddingPass
from tests.support.graphs import graph, run

_IMAGE = "float[N, 3, H, W] x, float[4, 3, 3, 3] w"
_CONSTANTS = (
    "int64[8] one = {0, 0, 1, 1, 0, 0, 1, 1}, int64[8] end = {0, 0, 0, 0, 0, 0, 1, 1}, float zero = {0}, "
    "int64[8] wide = {0, 0, 3, 0, 0, 0, 0, 0}, int64[8] crop = {0, 0, 1, -1, 0, 0, 1, 1}, float half = {0.5}, "
    "int64[8] channel = {0, 1, 1, 1, 0, 0, 1, 1}, int64[4] sides = {1, 2, 0, 1}, int64[2] axes = {2, -1}, "
    "int64[2] along = {2, 1}, int64[1] last = {2}, float lowest = {-3.4028234663852886e38}, float scale = {0.25}, "
    "uint8 center = {128}, uint8 other = {7}, uint8 nothing = {0}"
)


def _model(body: str, inputs: str = _IMAGE) -> ir.Model:
    model = graph(inputs, "float[] y", body, constants=_CONSTANTS)
    rng = np.random.default_rng(0)
    for value in list(model.graph.inputs[1:]):
        shape = [int(d) for d in value.shape or ()]
        value.const_value = ir.tensor((rng.standard_normal(shape) * 4).astype(value.dtype.numpy()), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return model


def _ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("body", "pads"),
    [
        ("p = Pad(x, one)  y = Conv(p, w)", [1, 1, 1, 1]),
        ('p = Pad(x, one, zero)  y = Conv<auto_pad = "VALID">(p, w)', [1, 1, 1, 1]),
        ("p = Pad(x, end)  y = Conv<strides = [2, 2], pads = [0, 1, 2, 0]>(p, w)", [0, 1, 3, 1]),
        ("p = Pad(x, one)  q = Pad(p, end)  y = Conv<dilations = [2, 2]>(q, w)", [1, 1, 2, 2]),
        ("p = Pad(x, sides, zero, axes)  y = Conv(p, w)", [1, 2, 0, 1]),
        ("p = Pad(x, one)  y = AveragePool<kernel_shape = [3, 3]>(p)", [1, 1, 1, 1]),
        (
            "p = Pad(x, one)  y = AveragePool<kernel_shape = [3, 3], pads = [1, 0, 1, 0], count_include_pad = 1>(p)",
            [2, 1, 2, 1],
        ),
        ("p = Pad(x, one, lowest)  y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(p)", [1, 1, 1, 1]),
        (
            "r = Relu(x)  d = Concat<axis = 1>(r, r)  p = Pad(d, one)  "
            "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(p)",
            [1, 1, 1, 1],
        ),
        ("c = Clip(x, zero)  p = Pad(c, one)  y = MaxPool<kernel_shape = [2, 2]>(p)", [1, 1, 1, 1]),
        (
            "p = Pad(x, one)  q = QuantizeLinear(p, scale, center)  d = DequantizeLinear(q, scale, center)  "
            "y = Conv(d, w)",
            [1, 1, 1, 1],
        ),
        (
            "q = QuantizeLinear(x, scale, center)  p = Pad(q, one, center)  d = DequantizeLinear(p, scale, center)  "
            "y = Conv(d, w)",
            [1, 1, 1, 1],
        ),
        (
            "q = QuantizeLinear(x, scale, center)  p = Pad(q, one, center)  v = QuantizeLinear(w, scale, other)  "
            "c = ConvInteger(p, v, center, other)  y = Cast<to = 1>(c)",
            [1, 1, 1, 1],
        ),
        (
            "q = QuantizeLinear(x, scale, center)  p = Pad(q, end, center)  v = QuantizeLinear(w, scale, other)  "
            "c = QLinearConv(p, scale, center, v, scale, other, scale, center)  y = Cast<to = 1>(c)",
            [0, 0, 1, 1],
        ),
    ],
)
def test_padding_is_of_the_reader(body: str, pads: list[int]) -> None:
    model = _model(body)
    after = normalize.normalize(model.clone()).model
    assert "Pad" not in _ops(after)
    (reader,) = (n for n in after.graph if n.attributes.get_ints("pads", ()))
    assert list(reader.attributes.get_ints("pads")) == pads
    for h, w in ((5, 5), (6, 9), (17, 8)):
        feeds = {"x": np.random.default_rng(h).standard_normal((2, 3, h, w)).astype(np.float32)}
        np.testing.assert_allclose(run(after, feeds)[0], run(model, feeds)[0], atol=1e-4)


@pytest.mark.parametrize("rank", [1, 3])
def test_padding_of_one_and_three_axes(rank: int) -> None:
    sides = ", ".join("BCD"[:rank])
    ends = ", ".join(["0", "0", *["1"] * rank, "0", "0", *["2"] * rank])
    kernel = ", ".join(["3"] * rank)
    model = graph(
        f"float[N, 2, {sides}] x",
        "float[] y",
        "p = Pad(x, pads)  k = Expand(number, shape)  y = Conv(p, k)",
        constants=f"int64[{4 + 2 * rank}] pads = {{{ends}}}, float number = {{0.5}}, "
        f"int64[{rank + 2}] shape = {{4, 2, {kernel}}}",
    )
    after = normalize.normalize(model.clone(), growth=10.0).model
    assert _ops(after) == ["Conv"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 2, *(5, 6, 7)[:rank])).astype(np.float32)}
    np.testing.assert_allclose(run(after, feeds)[0], run(model, feeds)[0], atol=1e-5)


def test_every_reader_takes_the_padding() -> None:
    model = _model("p = Pad(x, one)  a = Conv(p, w)  b = Conv(p, w2)  y = Add(a, b)", f"{_IMAGE}, float[4, 3, 3, 3] w2")
    after = normalize.normalize(model.clone()).model
    assert sorted(_ops(after)) == ["Add", "Conv", "Conv"]
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 6, 7)).astype(np.float32)}
    np.testing.assert_allclose(run(after, feeds)[0], run(model, feeds)[0], atol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        "p = Pad(x, one, half)  y = Conv(p, w)",
        'p = Pad<mode = "reflect">(x, one)  y = Conv(p, w)',
        "p = Pad(x, crop)  y = Conv(p, w)",
        "p = Pad(x, channel)  s = Slice(p, last, last, last)  y = Conv(p, w)",
        "p = Pad(x, sides, zero, along)  y = Conv(p, w)",
        'p = Pad(x, one)  y = Conv<auto_pad = "SAME_UPPER">(p, w)',
        "p = Pad(x, one)  y = ConvTranspose(p, w)",
        "p = Pad(x, one)  y = MaxPool<kernel_shape = [3, 3]>(p)",  # negative numbers lie below the zeros
        "r = Relu(x)  p = Pad(r, one)  y = MaxPool<kernel_shape = [3, 3], ceil_mode = 1>(p)",
        "r = Relu(x)  p = Pad(r, wide)  y = MaxPool<kernel_shape = [3, 3]>(p)",
        "r = Relu(x)  p = Pad(r, one)  y = MaxPool<kernel_shape = [3, 3], dilations = [2, 2]>(p)",
        "r = Relu(x)  p = Pad(r, one)  y, at = MaxPool<kernel_shape = [3, 3]>(p)",
        "r = Relu(x)  s = Sub(r, half)  p = Pad(s, one)  y = MaxPool<kernel_shape = [3, 3]>(p)",
        "p = Pad(x, one)  y = AveragePool<kernel_shape = [3, 3], pads = [1, 0, 1, 0]>(p)",
        "p = Pad(x, one)  y = LpPool<kernel_shape = [3, 3]>(p)",
        "q = QuantizeLinear(x, scale, center)  p = Pad(q, one, nothing)  d = DequantizeLinear(p, scale, center)  "
        "y = Conv(d, w)",
        "p = Pad(x, one)  q = QuantizeLinear(p, scale, center)  d = DequantizeLinear(q, scale, other)  y = Conv(d, w)",
        "p = Pad(x, one, lowest)  q = QuantizeLinear(p, scale, center)  d = DequantizeLinear(q, scale, center)  "
        "y = Conv(d, w)",
        "p = Pad(x, one)  q = QuantizeLinear(p, scale, center)  d = DequantizeLinear(q, scale, center)  "
        "c = Conv(d, w)  g = GlobalMaxPool(d)  y = Concat<axis = 2>(g, g)",
    ],
)
def test_other_padding_stays(body: str) -> None:
    assert not ConstantPaddingPass()(_model(body)).modified

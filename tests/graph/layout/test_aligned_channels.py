"""Channels filled up to 16 bytes: which convolutions get them, which stay as they are, and that no value changes."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxopt.graph.layout import align
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run
from tests.support.kinds.random_convolution_graphs import Building, Map, finished

_WEIGHT = re.compile(r"\b([wb]\d*_(\d+(?:_\d+)*))\b")  # w_18_3_3_3 is a weight of these dims, b_18 a bias


def _model(body: str, shape: str = "n, 3, h, 8") -> ir.Model:
    names = dict(_WEIGHT.findall(body))
    declared = ", ".join(f"float[{dims.replace('_', ', ')}] {name}" for name, dims in names.items())
    made = graph(
        f"float[{shape}] x, {declared}",
        "float[] y",
        body,
        constants="float[4] s = {1, 1, 2, 2}, int64[3] thirds = {3, 6, 6}",
    )
    rng = np.random.default_rng(0)
    hold(made, {k: rng.standard_normal([int(d) for d in dims.split("_")]) for k, dims in names.items()}, np.float32)
    return made


_FIRST = "a = Conv<pads = [1, 1, 1, 1]>(x, w_18_3_3_3, b_18)"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (f"{_FIRST} r = Relu(a) y = Conv(r, w_8_18_1_1)", 1),
        (f"{_FIRST} d = Conv<group = 18>(a, w_18_1_3_3, b2_18) y = Conv(d, w_8_18_1_1, b_8)", 1),
        (f"{_FIRST} c = Conv(x, w_22_3_3_3) p = MaxPool<kernel_shape = [3, 3]>(a) j = Concat<axis = 1>(c, p) "
         "y = Conv(j, w_8_40_1_1)", 2),
        (f"{_FIRST} c = Conv(a, w_18_18_1_1) t = Add(a, c) u = Resize(t, , s) "
         "i = InstanceNormalization(u, b3_18, b4_18) y = Conv<strides = [2, 2]>(i, w_8_18_3_3)", 2),
        (f"{_FIRST} g = GlobalAveragePool(a) q = Conv(g, w_6_18_1_1) e = Relu(q) f = Conv(e, w_18_6_1_1, b5_18) "
         "k = Sigmoid(f) m = Mul(a, k) y = Conv(m, w_8_18_1_1)", 3),
        (f"{_FIRST} l = PRelu(a, w2_18_1_1) t = ConvTranspose<strides = [2, 2]>(l, w_18_10_2_2, b_10) "
         "y = Conv(t, w_8_10_1_1)", 2),
        (f"{_FIRST} k = Conv(a, w_1_18_1_1) g = Sigmoid(k) m = Mul(a, g) y = Conv(m, w_8_18_1_1)", 1),
        # Res2Net: a map in parts, each with a convolution of its own, joined again.
        ("a = Conv(x, w_12_3_1_1, b_12) r = Relu(a) p, q = Split<axis = 1, num_outputs = 2>(r) "
         "c = Conv<pads = [1, 1, 1, 1]>(p, w_6_6_3_3) t = Add(c, q) d = Conv<pads = [1, 1, 1, 1]>(t, w2_6_6_3_3, b_6) "
         "j = Concat<axis = 1>(c, d, q) y = Conv(j, w_8_18_1_1)", 3),
        ("a = Conv(x, w_15_3_1_1) p, q, o = Split<axis = 1>(a, thirds) j = Concat<axis = 1>(o, p) "
         "s2 = Add(q, q) m = Conv(j, w_8_9_1_1) n = Conv(s2, w_8_6_1_1) y = Add(m, n)", 1),
        ("a = Conv(x, w_12_3_1_1) p, q = Split<axis = 1, num_outputs = 2>(a) t = Softmax<axis = 1>(q) u = Add(p, t) "
         "y = Conv(u, w_8_6_1_1)", 0),
        ("a = Conv(x, w_12_3_1_1) p, q = Split<axis = 2, num_outputs = 2>(a) t = Add(p, q) y = Conv(t, w_8_12_1_1)", 0),
        # What reads the map tells channels apart, or the weights are read twice.
        (f"{_FIRST} y = Relu(a)", 0),
        (f"{_FIRST} t = Softmax<axis = 1>(a) y = Conv(t, w_8_18_1_1)", 0),
        (f"{_FIRST} t = Add(a, x2_18) y = Conv(t, w_8_18_1_1)".replace("x2_18", "a2").replace(
            "t =", "m = Conv<pads = [1, 1, 1, 1]>(x, w2_18_3_3_3) a2 = Softmax<axis = 1>(m) t ="), 0),
        (f"{_FIRST} t = Conv<group = 2>(a, w_8_9_1_1) y = Relu(t)", 0),
        (f"{_FIRST} c = Conv<pads = [1, 1, 1, 1]>(x, w_18_3_3_3) t = Mul(a, c) y = Conv(t, w_8_18_1_1)", 0),
        ("a = Conv(x, w_5_3_1_1) y = Conv(a, w_8_5_1_1)", 0),  # 3 for 5 are too many
    ],
)  # fmt: skip
def test_what_is_filled_up(body: str, count: int) -> None:
    source = _model(body)
    found = source.clone()
    assert align(found.graph, infer(found)) == count
    weights = [n.inputs[1].shape.numpy() for n in found.graph if n.op_type == "Conv"]  # type: ignore[union-attr]
    assert sum(w[0] % 4 == 0 for w in weights) >= count
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 8)).astype(np.float32)
    (expected,), (result,) = run(source, {"x": x}), run(found, {"x": x})
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_infinities_and_nan_stay(special: float) -> None:
    """A channel of zeros would make NaN of an infinity."""
    source = _model("a = Conv(x, w_6_3_1_1, b_6) r = Relu(a) y = Conv(r, w_8_6_1_1)")
    for tensor in ("w_6_3_1_1", "w_8_6_1_1"):
        weight = source.graph.initializers[tensor]
        weight.const_value = ir.Tensor(np.abs(weight.const_value.numpy()), name=tensor)  # type: ignore[union-attr]
    found = source.clone()
    assert align(found.graph, infer(found)) == 1
    x = np.ones((2, 3, 6, 8), np.float32)
    x[0, 1, 2, 3] = special
    np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=2e-5)


@pytest.mark.parametrize(("x", "window"), [("n, 3, l", "w_7_3_5"), ("n, 3, d, 4, 4", "w_7_3_1_3_3")])
def test_one_and_three_dims(x: str, window: str) -> None:
    taps = window.split("_", 3)[3].replace("_", ", ").replace("5", "1").replace("3", "1")
    source = _model(f"a = Conv(x, {window}) r = Tanh(a) y = Conv(r, w_8_7_{taps.replace(', ', '_')})", x)
    found = source.clone()
    assert align(found.graph, infer(found)) == 1
    values = np.random.default_rng(2).standard_normal((2, 3, *(6, 4, 4)[: x.count(",") - 1])).astype(np.float32)
    np.testing.assert_allclose(run(found, {"x": values})[0], run(source, {"x": values})[0], rtol=2e-5, atol=2e-5)


def _conv(b: Building, m: Map, channels: int, kernel: int = 3) -> Map:
    name = [m.name, b.normal(channels, m.dims[1], kernel, kernel)] + (
        [b.normal(channels)] if b.pick(True, False) else []
    )
    return b.add((m.dims[0], channels, *m.dims[2:]), "Conv", name, pads=[kernel // 2] * 4)


def _step(b: Building, m: Map) -> Map:
    """What treats channels alike, or once in a while something that does not."""
    n, c, h, w = m.dims
    kind = b.pick(*"cccdujgsrpx")
    if kind == "c":
        return _conv(b, m, b.pick(5, 6, 8, 10, 14, 18), b.pick(1, 3))
    if kind == "d":
        return b.add(m.dims, "Conv", [m.name, b.normal(c, 1, 3, 3), b.normal(c)], group=c, pads=[1] * 4)
    if kind == "u":
        return b.add(m.dims, b.pick("Relu", "Sigmoid", "HardSwish", "Tanh", "Neg"), [m.name])
    if kind == "j":  # two branches, joined or added
        one, other = _conv(b, m, c), _conv(b, m, b.pick(c, 6))
        if one.dims == other.dims and b.pick(True, False):
            return b.add(m.dims, b.pick("Add", "Mul", "Max"), [one.name, other.name])
        return b.add((n, c + other.dims[1], h, w), "Concat", [one.name, other.name], axis=1)
    if kind == "g":
        mean = b.add((n, c, 1, 1), "ReduceMean", [m.name, b.ints(2, 3)])
        gate = b.add((n, c, 1, 1), "Sigmoid", [_conv(b, _conv(b, mean, 6, 1), c, 1).name])
        return b.add(m.dims, "Mul", [m.name, gate.name])
    if kind == "s":
        scales = b.constant(np.array([1, 1, 2, 2], np.float32))
        return b.add((n, c, 2 * h, 2 * w), "Resize", [m.name, "", scales], mode="nearest") if h < 16 else m
    if kind == "r":
        dims = b.pick((c, 1, 1), (1,), (1, c, 1, 1))
        return b.add(m.dims, b.pick("Mul", "Add", "PRelu"), [m.name, b.normal(*dims)])
    if kind == "p":
        return b.add(m.dims, b.pick("MaxPool", "AveragePool"), [m.name], kernel_shape=[3, 3], pads=[1] * 4)
    return b.add(m.dims, "Softmax", [m.name], axis=b.pick(1, 3))


@st.composite
def _networks(draw: st.DrawFn) -> ir.Model:
    b = Building(draw)
    m = _conv(b, Map("x", (2, 3, 6, 5)), b.pick(6, 7, 18))
    for _ in range(draw(st.integers(1, 6))):
        m = _step(b, m)
    last = _conv(b, m, 8)
    values = [("x", (2, 3, 6, 5)), (last.name, last.dims)]
    return ir.from_proto(finished(b, values, "NCHW", draw(st.sampled_from(("", "N", "NHW")))))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=_networks())
def test_random_networks_compute_the_same(source: ir.Model) -> None:
    found = source.clone()
    align(found.graph, infer(found))
    x = np.random.default_rng(3).standard_normal((2, 3, 6, 5)).astype(np.float32)
    for expected, result in zip(run(source, {"x": x}), run(found, {"x": x}), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * max(1, np.abs(expected).max()))

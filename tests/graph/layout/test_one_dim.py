"""Convolutions of one dim as those of images of height 1: their form, and how far that goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from onnxopt.graph.layout import widen_sequences
from onnxopt.graph.rewrite.schedule import infer_shapes
from tests.graph.layout.test_layout import borders, laid_out, model, ops, same
from tests.support.graphs import run

INPUT, OUTPUT = "float[N, 8, 40] x", "float[] y"
WEIGHTS = (
    "float[8,8,3] w, float[8,8,1] p, float[8,1,3] d, float[8,4,3] halves, float[8] b, float[8,1] c, float[2,8,40] whole"
)


def widened(body: str, constants: str = "", inputs: str = INPUT) -> tuple[ir.Model, ir.Model]:
    """The graph, and it with images, which computes the same."""
    source = model(body, inputs, OUTPUT, WEIGHTS, constants)
    found = source.clone()
    infer_shapes(found)
    widen_sequences(found)
    common.RemoveUnusedNodesPass()(found)
    same(source, found, 2)
    return source, found


@pytest.mark.parametrize(
    ("conv", "attributes"),
    [
        ("Conv<kernel_shape=[3], pads=[2, 1], strides=[2], dilations=[2]>(x, w, b)",
         {"kernel_shape": (1, 3), "pads": (0, 2, 0, 1), "strides": (1, 2), "dilations": (1, 2)}),
        ('Conv<auto_pad="SAME_UPPER", strides=[3]>(x, w)', {"strides": (1, 3)}),
        ("Conv<group=8>(x, d)", {}),
        ("ConvTranspose<strides=[2], output_padding=[1]>(x, w)", {"strides": (1, 2), "output_padding": (0, 1)}),
    ],
)  # fmt: skip
def test_a_convolution_gets_a_height(conv: str, attributes: dict[str, tuple[int, ...]]) -> None:
    _, found = widened(f"y = {conv}")
    assert ops(found) == ["Unsqueeze", conv.split("<")[0].split("(")[0], "Squeeze"]
    convolution = found.graph.node(1)
    assert {name: tuple(convolution.attributes.get_ints(name)) for name in attributes} == attributes
    assert convolution.inputs[1] is not None and convolution.inputs[1].shape is not None
    assert convolution.inputs[1].shape.numpy()[2] == 1


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("a = Conv(x, p) l = LeakyRelu<alpha=0.1>(a) m = Conv<pads=[1,1]>(l, w, b) y = Add(a, m)", ""),
        ("a = Conv(x, p) q = Concat<axis=1>(a, x, a) r, s, t = Split<axis=1, num_outputs=3>(q) z = Mul(r, t) "
         "y = Conv(z, w)", ""),
        ("a = Conv(x, p) z = PRelu(a, c) u = Slice(z, one, end, last) v = Pad(u, pads) y = Conv(v, w)",
         "int64[1] one = {1}, int64[1] end = {-1}, int64[1] last = {2}, int64[6] pads = {0, 0, 2, 0, 0, 1}"),
        ("a = Conv(x, p) m = ReduceMean(a, last) s = Sigmoid(m) z = Mul(a, s) y = Conv(z, w)", "int64[1] last = {-1}"),
        ("a = Conv(x, w) m = MaxPool<kernel_shape=[3], strides=[2], pads=[1,1]>(a) "
         "n = AveragePool<kernel_shape=[2]>(m) y = Conv(n, w)", ""),
        ("a = Conv(x, p) g = Reshape(a, four) n = InstanceNormalization(g, o, o) h = Shape(a) r = Reshape(n, h) "
         "s = Mul(r, c) t = Add(s, c) y = Conv(t, w)", "int64[3] four = {0, 4, -1}, float[4] o = {1, 2, 3, 4}"),
    ],
    ids=["residual", "split", "pad", "gate", "pools", "groups"],
)  # fmt: skip
def test_what_stands_between_convolutions_has_four_dims(body: str, constants: str, tmp_path: Path) -> None:
    source, found = widened(body, constants)
    assert [op for op in ops(found) if op == "Squeeze"] == ["Squeeze"]  # of the result
    laid, count = laid_out(source, tmp_path)
    assert count == 2
    assert {name.removesuffix("_image") for name in borders(laid)} <= {"x", "y"}
    same(source, laid, 2)


def test_tokens_need_no_transpose(tmp_path: Path) -> None:
    """A convolution module of a Conformer: one dim between two Transposes."""
    body = (
        "t = Transpose<perm=[0,2,1]>(x) a = Conv(t, p) s = Sigmoid(a) m = Mul(a, s) "
        "e = Conv<group=8, pads=[1,1]>(m, d) u = Transpose<perm=[0,2,1]>(e) y = Add(x, u)"
    )
    source = model(body, "float[N, 40, 8] x", OUTPUT, WEIGHTS)
    found, count = laid_out(source, tmp_path)
    assert count == 2
    assert borders(found) == []
    same(source, found, 2)


def test_no_batch_is_no_error(tmp_path: Path) -> None:
    body = "t = Transpose<perm=[0,2,1]>(x) e = Conv<group=8, pads=[1,1]>(t, d) y = Transpose<perm=[0,2,1]>(e)"
    source = model(body, "float[N, L, 8] x", OUTPUT, WEIGHTS)
    found, count = laid_out(source, tmp_path)
    assert count == 1
    (y,) = run(found, {"x": np.zeros((0, 7, 8), np.float32)})
    assert y.shape == (0, 7, 8)


def test_quantization_along_the_length_stays() -> None:
    """Of an operator after the convolution: one beside it keeps the convolution as it is."""
    body = (
        "a = Conv(x, p) t = Tanh(a) q = QuantizeLinear<axis=2>(t, steps) e = DequantizeLinear<axis=2>(q, steps) "
        "y = Sin(e)"
    )
    _, found = widened(body, f"float[40] steps = {{{', '.join(['0.1'] * 40)}}}")
    assert ops(found) == ["Unsqueeze", "Conv", "Tanh", "Squeeze", "QuantizeLinear", "DequantizeLinear", "Sin"]


def test_a_constant_part_gets_a_height() -> None:
    _, found = widened("a = Conv(x, p) q = Concat<axis=2>(a, whole) y = Conv(q, w)", inputs="float[2, 8, 40] x")
    assert ops(found) == ["Unsqueeze", "Conv", "Concat", "Conv", "Squeeze"]


def test_a_result_of_less_dims_is_as_before() -> None:
    _, found = widened("a = Conv(x, w) y = ReduceMax<keepdims=0>(a, last)", "int64[1] last = {2}")
    assert ops(found) == ["Unsqueeze", "Conv", "ReduceMax"]
    assert found.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    "body",
    ["v = Mul(w, b2) y = Conv(x, v)", "y = MaxPool<kernel_shape=[3]>(x)", "y = Conv<group=2>(x, halves)",
     "y = ConvTranspose<group=8>(x, d)"],
)  # fmt: skip
def test_others_stay(body: str) -> None:
    source, found = widened(body, "float[3] b2 = {1, 2, 3}")
    assert ops(found) == ops(source)

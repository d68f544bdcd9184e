"""Pads that a graph computes as TensorFlow's SAME go into the convolution, where they are proven to be these."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from onnxopt.graph.passes.padding.same_padding import SamePaddingPass
from tests.support.graphs import graph, run

# As torch exports it: out = ceil(size / stride), in floats; total = max((out - 1) * stride + 2 + 1 - size, 0).
_SIDE = (
    "{s} = Shape<start = {axis}, end = {end}>(x)  {s}q = Squeeze({s})  {s}f = Cast<to = 1>({s}q)  "
    "{s}d = Div({s}f, {by})  "
    "{s}c = Ceil({s}d)  {s}i = Cast<to = 7>({s}c)  {s}1 = Sub({s}i, one)  {s}m = Mul({s}1, {stride})  "
    "{s}p = Add({s}m, reach)  {s}t = Sub({s}p, {s}q)  {s}n = Max({s}t, zero)  {s}h = Div({s}n, two)  "
    "{s}r = Sub({s}n, {s}h)  {s}a = Reshape({s}{first}, whole)  {s}b = Reshape({s}{last}, whole)  "
)
_PAD = "pads = Concat<axis = 0>(none, none, ta, la, none, none, tb, lb)  "
_CONSTANTS = (
    "int64 one = {1}, int64 two = {2}, int64 three = {3}, int64 zero = {0}, int64 reach = {3}, int64[1] whole = {-1}, "
    "int64[1] none = {0}, float halves = {2}, float thirds = {3}, float fill = {0}, float other = {1}"
)


def _body(
    rest: str, stride: str = "two", by: str = "halves", first: str = "h", last: str = "r", fill: str = "fill"
) -> str:
    sides = (
        _SIDE.format(s=s, axis=axis, end=axis + 1, stride=stride, by=by, first=first, last=last)
        for s, axis in (("t", 2), ("l", 3))
    )
    return "".join(sides) + _PAD + f"p = Pad(x, pads, {fill})  " + rest


def _model(body: str) -> ir.Model:
    model = graph(
        "float[N, 3, H, W] x, float[4, 3, 3, 3] w, float[4, 3, 5, 5] v", "float[] y", body, constants=_CONSTANTS
    )
    rng = np.random.default_rng(0)
    for value in list(model.graph.inputs[1:]):
        shape = [int(d) for d in value.shape or ()]
        value.const_value = ir.tensor(rng.standard_normal(shape).astype(np.float32), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return model


def _ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(("stride", "by", "number"), [("two", "halves", 2), ("three", "thirds", 3)])
def test_computed_pads_are_same_upper(stride: str, by: str, number: int) -> None:
    model = _model(_body(f"y = Conv<strides = [{number}, {number}]>(p, w)", stride, by))
    after = normalize.normalize(model.clone()).model
    assert _ops(after) == ["Conv"]
    assert after.graph[0].attributes.get_string("auto_pad") == "SAME_UPPER"
    for h, w in ((1, 1), (2, 7), (8, 5), (9, 10), (31, 4)):
        feeds = {"x": np.random.default_rng(h).standard_normal((2, 3, h, w)).astype(np.float32)}
        np.testing.assert_allclose(run(after, feeds)[0], run(model, feeds)[0], atol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        _body("y = Conv<strides = [2, 2]>(p, v)"),  # of another kernel
        _body("y = Conv<strides = [1, 2]>(p, w)"),
        _body("y = Conv<strides = [2, 2], pads = [0, 0, 0, 1]>(p, w)"),
        _body("y = Conv<strides = [2, 2], dilations = [2, 2]>(p, w)"),
        _body("y = Conv<strides = [2, 2]>(p, w)", by="thirds"),
        _body("y = Conv<strides = [2, 2]>(p, w)", first="r", last="h"),  # SAME_LOWER
        _body("y = Conv<strides = [2, 2]>(p, w)", fill="other"),
        _body("c = Conv<strides = [2, 2]>(p, w)  n = Neg(p)  g = GlobalMaxPool(n)  y = Concat<axis = 1>(g, g)"),
        _body("y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(p)"),
    ],
    ids=["kernel", "stride", "pads", "dilated", "quotient", "lower", "fill", "readers", "pool"],
)
def test_other_pads_stay(body: str) -> None:
    model = _model(body)
    assert not SamePaddingPass()(model).modified
    assert "Pad" in _ops(model)

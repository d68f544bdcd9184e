"""Taps that read padding alone: what is cut, what stays, and that nothing changes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support import graphs


def _model(x: str, weight: tuple[int, ...], attributes: str, body: str = "") -> ir.Model:
    bias = (weight[0],)
    inputs = f"float[{x}] x, float[{', '.join(map(str, weight))}] w, float[{bias[0]}] b"
    made = graphs.graph(inputs, "float[] y", body or f"y = Conv<{attributes}>(x, w, b)")
    rng = np.random.default_rng(0)
    for value in list(made.graph.inputs)[1:]:
        array = rng.standard_normal(weight if value.name == "w" else bias).astype(np.float32)
        value.const_value = ir.tensor(array, name=value.name)
        made.graph.inputs.remove(value)
        made.graph.register_initializer(value)
    InferShapesPass()(made)
    return made


def _weights(model: ir.Model) -> list[tuple[int, ...]]:
    convs = [node for node in model.graph if node.op_type == "Conv"]
    return [tuple(node.inputs[1].shape.numpy()) for node in convs]  # type: ignore[union-attr]


def _check(source: ir.Model, found: ir.Model, *shapes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for shape in shapes:
        x = rng.standard_normal(shape).astype(np.float32)
        (expected,), (result,) = graphs.run(source, {"x": x}), graphs.run(found, {"x": x})
        np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "weight", "attributes", "kept"),
    [
        ("n, 2, 1, h, 5", (4, 2, 3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]", (1, 3, 3)),
        ("n, 2, 1, h, 5", (4, 2, 3, 3, 3), "pads = [1, 1, 1, 1, 1, 1], strides = [2, 2, 1]", (1, 3, 3)),
        ("n, 2, 8, 6", (4, 2, 3, 3), "pads = [12, 6, 12, 6], dilations = [12, 6]", (1, 1)),
        ("n, 2, 8, 7", (4, 2, 3, 3), "pads = [12, 6, 12, 6], dilations = [12, 6]", (1, 3)),
        ("n, 4, h, 2", (4, 1, 1, 7), "pads = [0, 3, 0, 3], group = 4", (1, 3)),
        ("n, 2, h, 2", (4, 2, 1, 5), "pads = [0, 3, 0, 1]", (1, 3)),
    ],
)
def test_what_is_cut(x: str, weight: tuple[int, ...], attributes: str, kept: tuple[int, ...], tmp_path: Path) -> None:
    source = _model(x, weight, attributes)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["fold"] == 1
    assert _weights(found) == [(*weight[:2], *kept)]
    dims = [{"n": 2, "h": 4}.get(d, d) for d in x.split(", ")]
    _check(source, found, tuple(int(d) for d in dims))


@pytest.mark.parametrize(
    ("x", "weight", "attributes"),
    [
        ("n, 2, d, 4, 5", (4, 2, 3, 1, 1), "pads = [1, 0, 0, 1, 0, 0]"),
        ("n, 2, 2, 4, 5", (4, 2, 3, 1, 1), "pads = [1, 0, 0, 1, 0, 0]"),
        ("n, 2, 1, h", (4, 2, 3, 1), 'auto_pad = "SAME_UPPER"'),
    ],
)
def test_what_stays(x: str, weight: tuple[int, ...], attributes: str, tmp_path: Path) -> None:
    source = _model(x, weight, attributes)
    rewrite(source, tmp_path)
    assert _weights(source) == [weight]


def test_a_weight_that_is_read_whole_stays(tmp_path: Path) -> None:
    body = "c = Conv<pads = [1, 0, 1, 0]>(x, w, b)  s = ReduceSum(w)  y = Mul(c, s)"
    source = _model("n, 4, 1, h", (4, 4, 3, 1), "", body)
    rewrite(source, tmp_path)
    assert _weights(source) == [(4, 4, 3, 1)]


def test_a_weight_of_two_convolutions_is_cut_once(tmp_path: Path) -> None:
    body = "c = Conv<pads = [1, 0, 1, 0]>(x, w, b)  r = Relu(c)  y = Conv<pads = [1, 0, 1, 0]>(r, w, b)"
    source = _model("n, 4, 1, h", (4, 4, 3, 1), "", body)
    found = source.clone()
    rewrite(found, tmp_path)
    assert _weights(found) == [(4, 4, 1, 1)] * 2
    assert len([name for name in found.graph.initializers if name.startswith("w")]) == 1
    _check(source, found, (2, 4, 1, 3))


def test_random_convolutions(tmp_path: Path) -> None:
    """Of one to three dims, whose windows reach far over the edges."""
    rng = np.random.default_rng(2)
    cut = 0
    for k in range(60):
        dims = int(rng.integers(1, 4))
        kernel, strides, dilations = (rng.integers(1, high, dims).tolist() for high in (6, 4, 5))
        reach = [d * (n - 1) + 1 for n, d in zip(kernel, dilations, strict=True)]
        size = rng.integers(1, 5, dims).tolist()
        pads = [int(rng.integers(0, r)) for r in reach * 2]
        short = [max(0, r - s - pads[a] - pads[dims + a]) for a, (r, s) in enumerate(zip(reach, size, strict=True))]
        pads[dims:] = [p + more for p, more in zip(pads[dims:], short, strict=True)]
        named = f"pads = {pads}, strides = {strides}, dilations = {dilations}"
        source = _model(", ".join(map(str, ["n", 2, *size])), (3, 2, *kernel), named)
        found = source.clone()
        (tmp_path / str(k)).mkdir()
        rewrite(found, tmp_path / str(k))
        cut += sum(map(math.prod, _weights(found))) < sum(map(math.prod, _weights(source)))
        _check(source, found, (2, 2, *size))
    assert cut > 20

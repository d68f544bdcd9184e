"""1x1 convolutions in NHWC as GEMM regions: what they take in, what stays a Conv, and that no result changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import Gemm
from tests.support.fakes import idle_gpu
from tests.support.graphs import graph, run

_TO_NCHW, _TO_NHWC = "Transpose<perm = [0, 3, 1, 2]>", "Transpose<perm = [0, 2, 3, 1]>"
_INPUTS = "float[N, H, W, 4] x, float[N, H, W, 6] r"
_CONV = f"t = {_TO_NCHW}(x)  w = Reshape(matrix, square)  c = Conv<kernel_shape = [1, 1]>(t, w, b)  p = {_TO_NHWC}(c)  "
_PLAIN = {"bias": None, "residual": None, "activation": "none"}
# A weight for each sample, as graph/layout/gated_weights.py writes it.
_GATED_INPUTS = "float[N, 3, 5, 4] x, float[N, 3, 5, 6] r, float[N, 1, 1, 4] g"
_GATED = (
    f"m = Mul(g, matrix)  t = {_TO_NCHW}(x)  f = Reshape(t, flat)  c = MatMul(m, f)  q = Reshape(c, planes)  "
    f"z = {_TO_NHWC}(q)  p = Add(z, b)  "
)


def _model(body: str, inputs: str = _INPUTS, outputs: str = "float[] y") -> ir.Model:
    rng = np.random.default_rng(5)
    rows = ["int64[4] square = {6, 4, 1, 1}", "int64[4] halves = {3, 4, 1, 1}", "int64[2] parts = {3, 3}"]
    for name, dims in (("matrix", (6, 4)), ("b", (6,)), ("grouped", (6, 2))):
        values = ", ".join(f"{v:.6f}" for v in rng.standard_normal(int(np.prod(dims))))
        rows.append(f"float[{', '.join(map(str, dims))}] {name} = {{{values}}}")
    rows += ["int64[4] of_groups = {6, 2, 1, 1}", "int64[4] flat = {0, 1, 4, 15}", "int64[4] planes = {0, 6, 3, 5}"]
    return graph(inputs, outputs, body, constants=", ".join(rows))


@pytest.mark.parametrize(
    ("body", "nodes", "fields"),
    [
        (_CONV + "y = Hardmax(p)", "w t c p", {"bias": 2}),
        (_CONV + "y = Relu(p)", "w t c p y", {"bias": 2, "activation": "relu"}),
        (_CONV + "s = Add(p, r)  y = Relu(s)", "w t c p s y", {"bias": 2, "residual": 3, "activation": "relu"}),
        (_CONV + "s = Add(r, p)  y = Hardmax(s)", "w t c p s", {"bias": 2, "residual": 3}),
        (_CONV.replace(", b)", ")") + "y = Hardmax(p)", "w t c p", {}),
    ],
)
def test_what_a_convolution_takes_in(body: str, nodes: str, fields: dict[str, object]) -> None:
    (region,) = [r for r in fuse(_model(body)).regions if r.kind is GEMM]
    assert {n.name for n in region.nodes} == set(nodes.split())
    assert isinstance(region.meaning, Gemm)
    assert region.meaning.transpose_b
    assert region.meaning == dataclasses.replace(region.meaning, **(_PLAIN | fields))
    assert [v.name for v in region.inputs][:2] == ["x", "matrix"]


def _half(source: ir.Model) -> ir.Model:
    """The model in float16."""
    for value in [*source.graph.inputs, *source.graph.initializers.values()]:
        if value.dtype == ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType.FLOAT16)
            if value.const_value is not None:
                value.const_value = ir.Tensor(value.const_value.numpy().astype(np.float16), name=value.name)
    return source


@pytest.mark.parametrize(
    ("reader", "taken"),
    [
        (f"o = {_TO_NCHW}(g)  d = Conv(o, v)  y = {_TO_NHWC}(d)", True),
        ("y = MatMul(g, u)", True),
        (f"o = {_TO_NCHW}(g)  d = Conv<group = 6>(o, each)  y = {_TO_NHWC}(d)", True),
        ("y = Neg(g)", False),
    ],
)
@pytest.mark.parametrize(("form", "activation"), [("g = Gelu(p)", "gelu"), ("s = Sigmoid(p)  g = Mul(s, p)", "silu")])
def test_an_activation_is_of_the_convolution_before_another_one(
    form: str, activation: str, reader: str, taken: bool
) -> None:
    inputs = _INPUTS + ", float[4, 6, 3, 3] v, float[6, 4] u, float[6, 1, 3, 3] each"
    source = _model(f"{_CONV}{form}  {reader}", inputs)  # cuDNN has kernels with a SiLU for 16 bits
    plan = fuse(source if activation == "silu" else _half(source))
    (region,) = [r for r in plan.regions if r.kind is GEMM and "c" in {n.name for n in r.nodes}]
    assert ("g" in {n.name for n in region.nodes}) == taken
    assert isinstance(region.meaning, Gemm) and region.meaning.activation == (activation if taken else "none")


@pytest.mark.parametrize(
    "body",
    [
        _CONV.replace("kernel_shape = [1, 1]", "strides = [2, 2]") + "y = Relu(p)",
        _CONV.replace("kernel_shape = [1, 1]", "pads = [0, 1, 0, 0]") + "y = Relu(p)",
        _CONV.replace("kernel_shape = [1, 1]", "group = 2").replace("matrix, square", "grouped, of_groups")
        + "y = Relu(p)",
        _CONV + "z = Hardmax(t)  u = Relu(p)  y = Add(u, r)  v = Identity(z)",  # NCHW x is read elsewhere too
    ],
)
def test_what_stays_a_convolution(body: str) -> None:
    assert not [r for r in fuse(_model(body, outputs="float[] y")).regions if r.kind is GEMM]


@pytest.mark.parametrize(
    ("behind", "nodes", "fields"),
    [
        ("y = Hardmax(p)", "t f c q z p", {"bias": 2}),
        ("s = Add(p, r)  y = Relu(s)", "t f c q z p s y", {"bias": 2, "residual": 3, "activation": "relu"}),
    ],
)
def test_a_weight_for_each_sample(behind: str, nodes: str, fields: dict[str, object]) -> None:
    (region,) = [r for r in fuse(_model(_GATED + behind, _GATED_INPUTS)).regions if r.kind is GEMM]
    assert {n.name for n in region.nodes} == set(nodes.split())
    assert isinstance(region.meaning, Gemm)
    assert region.meaning == dataclasses.replace(region.meaning, transpose_b=True, **(_PLAIN | fields))
    assert [v.name for v in region.inputs][:2] == ["x", "m"]


@pytest.mark.parametrize(
    "body",
    [
        _GATED.replace("f = Reshape", "u = Relu(t)  f = Reshape") + "v = Hardmax(u)  y = Add(p, r)",  # t is read twice
        _GATED.replace("q = Reshape", "u = Relu(c)  q = Reshape") + "v = Hardmax(u)  y = Add(p, r)",  # c is read twice
    ],
)
def test_what_stays_a_product(body: str) -> None:
    outputs = "float[] y, float[] v"
    for region in fuse(_model(body, _GATED_INPUTS, outputs)).regions:
        assert region.kind is not GEMM or "t" not in {n.name for n in region.nodes}


def test_a_weight_that_callers_give_stays_a_convolution() -> None:
    inputs = _INPUTS + ", float[6, 4] given"
    assert not [r for r in fuse(_model(_CONV.replace("matrix", "given") + "y = Relu(p)", inputs)).regions
                if r.kind is GEMM]  # fmt: skip


def test_the_name_says_conv() -> None:
    source = _model(_CONV + "y = Relu(p)")
    (kernel,) = outline(source, fuse(source))
    assert kernel.name.startswith("ConvRelu_")


@pytest.mark.usefixtures("library")
def test_results_do_not_change(tmp_path) -> None:
    rng, sources = np.random.default_rng(9), []
    for behind in ("y = Relu(p)", "s = Add(p, r)  y = Relu(s)", "y = Hardmax(p)"):
        shapes = [{"x": (*sizes, 4), "r": (*sizes, 6)} for sizes in ((2, 3, 5), (1, 1, 1), (3, 17, 2))]
        sources.append((_model(_CONV + behind), [_drawn(rng, each) for each in shapes]))
    _same(sources, tmp_path)


@pytest.mark.usefixtures("library")
def test_results_with_a_weight_for_each_sample_do_not_change(tmp_path) -> None:
    rng, sources = np.random.default_rng(9), []
    for behind in ("s = Add(p, r)  y = Relu(s)", "y = Hardmax(p)"):
        shapes = [{"x": (n, 3, 5, 4), "r": (n, 3, 5, 6), "g": (n, 1, 1, 4)} for n in (1, 4)]
        sources.append((_model(_GATED + behind, _GATED_INPUTS), [_drawn(rng, each) for each in shapes]))
    _same(sources, tmp_path)


def _drawn(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _same(sources: list[tuple[ir.Model, list[dict[str, np.ndarray]]]], folder: Path) -> None:
    """The originals, the functions inlined, and the products that the library has cuBLASLt compute."""
    cases, expected = [], []
    for source, feeds in sources:
        expected.append([run(source, given)[0] for given in feeds])
        kernels = outline(source, fuse(source))
        assert any(k.kind is GEMM for k in kernels)
        for given, y in zip(feeds, expected[-1], strict=True):
            np.testing.assert_allclose(run(source, given)[0], y, rtol=2e-5, atol=2e-5)
        cases.append((ir.to_proto(source), kernels, feeds))
    for results, wanted in zip(idle_gpu.products(folder / "run", cases), expected, strict=True):
        for found, y in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found["y"], y, rtol=2e-5, atol=2e-5)

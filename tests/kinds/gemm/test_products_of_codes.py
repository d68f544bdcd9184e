"""Quantized products run as float16 products of their codes, and compute what they did."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from cases.models import fuse, outline
from onnxopt.fusion.region import Kernel
from onnxopt.graph.passes.codes.products_of_codes import ProductsOfCodesPass
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import Gemm
from onnxopt.runtime.sessions import WITHOUT_INTEGER_KERNELS
from tests.support.fakes import idle_gpu
from tests.support.graphs import graph, run
from tests.support.kinds import products_of_codes
from tests.support.kinds.products_of_codes import Layer
from tests.support.precision import quantized_models

_TOLERANCE = {"float": 3e-6, "float16": 4e-3}  # of the largest |value|


def _fused(source: ir.Model) -> tuple[Kernel, ...]:
    """Replace the regions of a model by calls, as for GPUs."""
    ProductsOfCodesPass()(source)
    return outline(source, fuse(source))


def _gemms(kernels: tuple[Kernel, ...]) -> list[Gemm]:
    found = [k.program for k in kernels if k.kind is GEMM]
    assert all(isinstance(g, Gemm) for g in found)
    return found  # type: ignore[return-value]


def _run(proto: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs without ONNX Runtime's integer kernels, whose sums of two products saturate where a CPU has no VNNI."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(*WITHOUT_INTEGER_KERNELS)
    return list(ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run(None, feeds))


def _close(found: list[np.ndarray], wanted: list[np.ndarray], layer: Layer) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        scale = np.abs(b.astype(np.float64)).max()
        step = 0.03 if layer.quantized and layer.dtype == "float16" else 0.0  # rounded in 16 bits before it
        error = np.abs(a.astype(np.float64) - b)
        assert (error <= _TOLERANCE[layer.dtype] * scale + step * 1.01).all()
        assert np.mean(error) <= _TOLERANCE[layer.dtype] * scale


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of products of codes, fused, and what the original gives."""

    layer: Layer
    source: ir.Model
    kernels: tuple[Kernel, ...]
    feeds: dict[str, np.ndarray]
    wanted: list[np.ndarray]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("seeds", [range(k, k + 20) for k in (0, 20, 40)], ids=str)
def test_results_do_not_change(seeds: range, tmp_path: Path) -> None:
    """The original in ONNX Runtime and in onnx, the functions inlined, and the products that cuBLASLt computes."""
    cases = []
    for seed in seeds:
        layer = products_of_codes.drawn(seed)
        proto = products_of_codes.model(layer, seed)
        onnx.checker.check_model(proto, full_check=True)
        feeds = products_of_codes.feeds(proto)
        source = ir.from_proto(proto)
        wanted = run(source, feeds)
        if layer.dtype == "float":
            _close(ReferenceEvaluator(proto).run(None, feeds), wanted, layer)
        cases.append(Case(layer, source, _fused(source), feeds, wanted))
        products = _gemms(cases[-1].kernels)
        assert len(products) == 1 and products[0].operands == "float16", layer
        assert bool(products[0].unread) == (layer.dtype == "float"), layer
    _check_products(cases, tmp_path)


def _check_products(cases: list[Case], folder: Path) -> None:
    """The functions inlined, and the products that the library has cuBLASLt compute."""
    protos = [ir.to_proto(case.source) for case in cases]
    multiplied = [(proto, case.kernels, [case.feeds]) for proto, case in zip(protos, cases, strict=True)]
    for case, proto, (found,) in zip(cases, protos, idle_gpu.products(folder / "run", multiplied), strict=True):
        _close(_run(proto.SerializeToString(), case.feeds), case.wanted, case.layer)
        _close([found[output.name] for output in proto.graph.output], case.wanted, case.layer)


@pytest.mark.parametrize(
    ("layer", "fields"),
    [
        (Layer(), {"outputs": ("float32",)}),
        (Layer(bias=True), {"bias": 2}),
        (Layer(bias=True, residual=True, behind="Relu"), {"bias": 2, "residual": 3, "activation": "relu"}),
        (Layer(bias=True, behind="Gelu tanh"), {"bias": 2, "activation": "gelu_tanh"}),
        (Layer("Gemm", bias=True), {"bias": 2}),
        (Layer("Gemm transB", bias=True), {"bias": 2}),
        # Scales of columns are a factor behind the product, in float32.
        (Layer(per_axis=True, bias=True), {"bias": None}),
        (Layer(columns=(16, 24), quantized=True), {"outputs": ("float32",)}),
    ],
)
def test_what_a_product_of_codes_takes_in(layer: Layer, fields: dict[str, object]) -> None:
    (gemm,) = _gemms(_fused(ir.from_proto(products_of_codes.model(layer))))
    assert {name: getattr(gemm, name) for name in fields} == fields
    assert gemm.transpose_b and not gemm.transpose_a
    assert gemm.inputs[-1] == "uint8" and gemm.unread == (len(gemm.inputs) - 1,)


@pytest.mark.parametrize(
    "layer",
    [
        Layer(dtype="float16", bias=True),
        Layer(dtype="float16", bias=True, per_axis=True),
        Layer("Gemm", dtype="float16", bias=True, per_axis=True, weight_zero=True),
        Layer("Gemm transB", dtype="float16", bias=True, per_axis=True),
        Layer(dtype="float16", bias=True, columns=(16, 24)),
    ],
)
def test_a_product_of_a_float16_graph_has_no_factor_behind_it(layer: Layer) -> None:
    (gemm,) = _gemms(_fused(ir.from_proto(products_of_codes.model(layer))))
    assert gemm.inputs == ("float16",) * 3 and gemm.outputs == ("float16",) and gemm.bias == 2 and not gemm.unread


@pytest.mark.parametrize("least", [2.0**-13, 2.0**-15])
def test_steps_of_columns_that_float16_holds_badly_are_a_factor(least: float) -> None:
    source = ir.from_proto(products_of_codes.model(Layer(dtype="float16", per_axis=True)))
    (scales,) = [v for v in source.graph.initializers.values() if v.shape == ir.Shape([24]) and v.name != "x"][:1]
    steps = np.linspace(0.5, 1, 24)
    steps[3] = least
    scales.const_value = ir.Tensor(steps.astype(np.float16))
    (gemm,) = _gemms(_fused(source))
    assert gemm.outputs == (("float16",) if least > 2.0**-14 else ("float32",))


def test_a_residual_of_a_float16_graph_reads_the_codes_of_the_product() -> None:
    """No kernel stores codes of 8 bits, and the norm behind multiplies them by the scale."""
    body = (
        "n = LayerNormalization<axis = -1>(x, g, g)  q = QuantizeLinear(n, s, z)  a = DequantizeLinear(q, s, z)  "
        "w = DequantizeLinear(c, s)  m = MatMul(a, w)  t = Add(m, a)  y = LayerNormalization<axis = -1>(t, g, g)"
    )
    codes = ", ".join(map(str, np.random.default_rng(4).integers(-128, 128, 32 * 32)))
    bits = int(np.float16(0.05).view(np.uint16))
    constants = f"float16 s = {{{bits}}}, int8 z = {{0}}, int8[32, 32] c = {{{codes}}}"
    source = graph("float16[N, 9, 32] x, float16[32] g", "float16[N, 9, 32] y", body, constants=constants)
    drawn = np.random.default_rng(5).standard_normal
    feeds = {"x": drawn((2, 9, 32)).astype(np.float16), "g": drawn(32).astype(np.float16)}
    wanted = run(source, feeds)
    kernels = {(k.kind.name, k.ops, k.program.outputs) for k in _fused(source)}  # type: ignore[attr-defined]
    first = ("LayerNormalization", "QuantizeLinear", "DequantizeLinear", "Cast")
    assert {(kind, outputs) for kind, _, outputs in kernels} == {("rowwise", ("float16",)), ("gemm", ("float16",))}
    assert {ops for kind, ops, _ in kernels if kind == "rowwise"} == {first, ("Mul", "Add", "LayerNormalization")}
    np.testing.assert_allclose(run(source, feeds)[0], wanted[0], rtol=2e-2, atol=2e-2)


def test_weights_are_folded_and_turned_and_codes_are_an_output_of_what_makes_them() -> None:
    source = ir.from_proto(products_of_codes.model(Layer(norm=True, zero=7, weight=np.uint8)))
    codes = [i.const_value.numpy() for i in source.graph.initializers.values() if i.const_value is not None]
    (weight,) = [c for c in codes if c.dtype == np.uint8 and c.ndim == 2]
    kernels = _fused(source)
    (folded,) = [v for v in source.graph.initializers.values() if v.dtype == ir.DataType.FLOAT16]
    np.testing.assert_array_equal(folded.const_value.numpy(), weight.T.astype(np.float16) - 128)  # type: ignore[union-attr]
    assert not any(v.dtype == ir.DataType.UINT8 and v.shape != ir.Shape([]) for v in source.graph.initializers.values())
    (norm,) = [k for k in kernels if k.kind.name == "rowwise"]
    assert "LayerNormalization" in norm.ops
    assert norm.program.outputs == ("uint8", "float16")  # type: ignore[attr-defined]


def test_a_residual_reads_the_codes_that_the_product_needs_anyway() -> None:
    """It waits for the product, so the norm in front of both has no reason to store float32 numbers beside codes."""
    body = (
        "n = LayerNormalization<axis = -1>(x, g, g)  q = QuantizeLinear(n, s, z)  a = DequantizeLinear(q, s, z)  "
        "w = DequantizeLinear(c, s)  m = MatMul(a, w)  r = QuantizeLinear(m, s, z)  d = DequantizeLinear(r, s, z)  "
        "t = Add(d, a)  y = LayerNormalization<axis = -1>(t, g, g)"
    )
    codes = ", ".join(map(str, np.random.default_rng(4).integers(-128, 128, 32 * 32)))
    constants = f"float s = {{0.05}}, uint8 z = {{120}}, int8[32, 32] c = {{{codes}}}"
    source = graph("float[N, 9, 32] x, float[32] g", "float[N, 9, 32] y", body, constants=constants)
    drawn = np.random.default_rng(5).standard_normal
    feeds = {"x": drawn((2, 9, 32)).astype(np.float32), "g": drawn(32).astype(np.float32)}
    wanted = run(source, feeds)
    kernels = {(k.kind.name, k.program.inputs, k.program.outputs) for k in _fused(source)}  # type: ignore[attr-defined]
    assert kernels == {
        ("rowwise", ("float32", "float32"), ("uint8", "float16")),
        ("gemm", ("float16", "float16", "uint8"), ("float32",)),
        ("rowwise", ("uint8", "float32", "float32"), ("float32",)),
    }
    np.testing.assert_allclose(run(source, feeds)[0], wanted[0], rtol=1e-5, atol=1e-5)


def test_products_of_activations_alone() -> None:
    """q and k of attention; int8 codes become uint8 codes, and k's Transpose moves in front of its codes."""
    rounded = "{0}8 = QuantizeLinear({0}, s, z)  {0}f = DequantizeLinear({0}8, s, z)  "
    body = rounded.format("q") + rounded.format("k") + "t = Transpose<perm = [0, 2, 1]>(kf)  y = MatMul(qf, t)"
    source = graph(
        "float[B, 6, 16] q, float[B, 6, 16] k", "float[B, 6, 6] y", body, constants="float s = {0.02}, int8 z = {3}"
    )
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal((2, 6, 16)).astype(np.float32) for name in "qk"}
    wanted = run(source, feeds)
    (gemm,) = _gemms(_fused(source))
    assert gemm.inputs == ("float16", "float16", "uint8", "uint8") and gemm.unread == (2, 3)
    assert gemm.alpha == pytest.approx(0.0004)
    np.testing.assert_allclose(run(source, feeds)[0], wanted[0], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("codes", ["float8e4m3fn", "float8e5m2"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("channels", [False, True])
def test_products_of_8_bit_floats(codes: str, dtype: str, channels: bool, tmp_path: Path) -> None:
    """float16 holds them exactly, subnormals included."""
    body = (
        "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  w = DequantizeLinear<axis = 1>(c, t)  "
        "m = MatMul(a, w)  p = Add(m, b)  y = Relu(p)"
    )
    many = "[6]" if channels else ""
    constants = f"{dtype} s, {codes} z, {codes}[16, 6] c, {dtype}{many} t, {dtype}[6] b"
    path = tmp_path / "model.onnx"
    quantized_models.save_text(f"{dtype}[N, 16] x", f"{dtype}[N, 6] y", body, constants, 19, path)
    proto = onnx.load(path)
    (zero,) = [i for i in proto.graph.initializer if i.name == "z"]
    zero.raw_data = bytes(1)
    source = ir.from_proto(proto)
    storage = np.float16 if dtype == "float16" else np.float32
    feeds = {"x": np.random.default_rng(2).standard_normal((5, 16)).astype(storage)}
    wanted = run(source, feeds)
    kernels = _fused(source)
    (gemm,) = _gemms(kernels)
    assert gemm.operands == "float16" and not gemm.unread and gemm.transpose_b
    assert gemm.outputs == ("float32",) if channels or dtype == "float" else ("float16",)
    _check_products([Case(Layer(dtype=dtype), source, kernels, feeds, wanted)], tmp_path)


_PAIR = "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  "


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        (_PAIR + "y = MatMul(a, f)", "float s = {0.1}, uint8 z = {3}, float[8, 8] f"),  # a weight of floats
        (_PAIR + "w = DequantizeLinear<axis = 0>(c, t)  y = MatMul(a, w)",
         "float s = {0.1}, uint8 z = {3}, int8[8, 8] c, float[8] t"),  # scales of rows
        (_PAIR + "y = Relu(a)", "float s = {0.1}, int8 z = {3}"),
        (_PAIR + "w = DequantizeLinear(c, t)  y = MatMul(a, w)",
         "float s = {0.1}, uint16 z = {3}, int8[8, 8] c, float t = {0.1}"),  # 16 bits
        ("w = DequantizeLinear(c, t)  y = MatMul(x, w)", "int8[8, 8] c, float t = {0.1}"),  # weights alone
    ],
)  # fmt: skip
def test_what_is_no_product_of_8_bit_codes(body: str, constants: str) -> None:
    source = graph("float[4, 8] x", "float[4, 8] y", body, constants=constants, opset=21)
    before = ir.to_proto(source).SerializeToString()
    assert not ProductsOfCodesPass()(source).modified
    assert ir.to_proto(source).SerializeToString() == before


def test_a_pattern_that_ties_other_values_is_not_taken_for_codes() -> None:
    body = (
        "q = QuantizeLinear(x, s, z)  one = DequantizeLinear(q, t, z)  h = Cast<to = 10>(one)  n = Shape(h)  "
        "r = Reshape(q, n)  a = DequantizeLinear(r, s, z)  w = DequantizeLinear(c, s)  y = MatMul(a, w)"
    )
    constants = "float s = {0.1}, float t = {2}, uint8 z = {3}, int8[8, 8] c"
    source = graph("float[4, 8] x", "float[4, 8] y", body, constants=constants)
    assert not [g for g in _gemms(outline(source, fuse(source))) if g.unread]

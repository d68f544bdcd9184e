"""Products of e4m3 codes read the codes themselves, and compute what they did."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from cases.models import fuse, outline
from onnxopt.fusion.region import Kernel
from onnxopt.graph.passes.codes.products_of_codes import ProductsOfCodesPass
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import FLOAT8, Gemm
from onnxopt.runtime import sessions
from tests.support.fakes import idle_gpu
from tests.support.graphs import graph

_DEPTH = 128
_E4M3 = ml_dtypes.float8_e4m3fn


@dataclasses.dataclass(frozen=True)
class Layer:
    """x -> Q -> DQ -> products with weights -> more. scales: one a weight, or a vector of its columns.

    unbiased: the number of a product that has no bias.
    """

    dtype: str = "float16"
    operator: str = "MatMul"
    scales: tuple[float, ...] = (0.02,)
    columns: int = 144
    per_axis: bool = False
    bias: bool = True
    unbiased: int = -1
    residual: bool = False
    gelu: bool = False
    rows: int | str = "N"
    weight: type = _E4M3
    depth: int = _DEPTH

    @property
    def storage(self) -> np.dtype:
        return np.dtype(np.float16 if self.dtype == "float16" else np.float32)


def model(layer: Layer, seed: int = 1) -> onnx.ModelProto:
    """The graph, behind a norm. The results are y0, y1, ...; the residual is r."""
    rng = np.random.default_rng(seed)
    kind = TensorProto.FLOAT16 if layer.dtype == "float16" else TensorProto.FLOAT
    constants: list[onnx.TensorProto] = []

    def constant(array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    scale, zero = constant(layer.storage.type(0.05)), constant(np.zeros((), _E4M3))
    ones = constant(rng.uniform(0.5, 1.5, layer.depth).astype(layer.storage))
    nodes = [
        helper.make_node("LayerNormalization", ["x", ones, ones], ["n"]),
        helper.make_node("QuantizeLinear", ["n", scale, zero], ["q"]),
        helper.make_node("DequantizeLinear", ["q", scale, zero], ["a"]),
    ]
    batch = [] if layer.operator == "Gemm" else [2]
    shape = [*batch, layer.rows, layer.depth]
    outputs = []
    for k, t in enumerate(layer.scales):
        turned = layer.operator == "Gemm"
        codes = (rng.standard_normal((layer.depth, layer.columns)) * 40).astype(layer.weight)
        scales = layer.storage.type(t) * np.linspace(0.5, 1, layer.columns) if layer.per_axis else np.float64(t)
        operands = [constant(codes.T.copy() if turned else codes), constant(np.asarray(scales, layer.storage))]
        axis = {"axis": 0 if turned else 1} if layer.per_axis else {}
        nodes.append(helper.make_node("DequantizeLinear", operands, [f"w{k}"], **axis))
        bias = constant(rng.standard_normal(layer.columns).astype(layer.storage))
        if turned:
            given = ["a", f"w{k}", *([bias] if layer.bias else [])]
            nodes.append(helper.make_node("Gemm", given, [f"m{k}"], transB=1))
        else:
            nodes.append(helper.make_node("MatMul", ["a", f"w{k}"], [f"m{k}"]))
        last = f"m{k}"
        if layer.bias and not turned and k != layer.unbiased:
            nodes.append(helper.make_node("Add", [last, bias], [f"b{k}"]))
            last = f"b{k}"
        if layer.residual:
            nodes.append(helper.make_node("Add", [last, "r"], [f"s{k}"]))
            last = f"s{k}"
        behind = {"approximate": "tanh"} if layer.gelu else {}
        nodes.append(helper.make_node("Gelu" if layer.gelu else "Relu", [last], [f"y{k}"], **behind))
        outputs.append(helper.make_tensor_value_info(f"y{k}", kind, [*batch, layer.rows, layer.columns]))
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    if layer.residual:
        inputs.append(helper.make_tensor_value_info("r", kind, [*batch, layer.rows, layer.columns]))
    made = helper.make_graph(nodes, "g", inputs, outputs, constants)
    for node in made.node:
        node.name = node.output[0]
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def fused(source: ir.Model, *, eight_bits: bool = True) -> tuple[Kernel, ...]:
    """Replace the regions of a model by calls, as for GPUs."""
    ProductsOfCodesPass(eight_bits=eight_bits)(source)
    return outline(source, fuse(source))


def gemms(kernels: tuple[Kernel, ...]) -> list[Gemm]:
    return [k.program for k in kernels if k.kind is GEMM and isinstance(k.program, Gemm)]


_LAYERS = {
    "plain": (Layer(bias=False), {"outputs": ("float16",), "bias": None}),
    "bias": (Layer(), {"outputs": ("float16",), "bias": 2, "activation": "relu"}),
    "residual": (Layer(residual=True), {"bias": 2, "residual": 3}),
    "gelu": (Layer(gelu=True), {"bias": 2, "activation": "gelu_tanh"}),
    "gemm": (Layer(operator="Gemm"), {"bias": 2, "outputs": ("float16",)}),
    "three of one scale": (Layer(scales=(0.02, 0.02, 0.02)), {"outputs": ("float16",)}),
    "a bias is missing": (Layer(scales=(0.02, 0.02, 0.02), unbiased=1), {"bias": 2, "outputs": ("float16",)}),
    "three scales": (Layer(scales=(0.02, 0.03, 0.01)), {"bias": None, "outputs": ("float32",)}),
    "scales of columns": (Layer(per_axis=True), {"bias": None, "outputs": ("float32",)}),
    "float32": (Layer("float"), {"bias": None, "outputs": ("float32",)}),
    "float32 residual": (Layer("float", bias=False, residual=True), {"residual": 2, "outputs": ("float32",)}),
    "float32 gemm": (Layer("float", operator="Gemm"), {"bias": None, "outputs": ("float32",)}),
    "float32 gelu": (Layer("float", bias=False, gelu=True), {"activation": "gelu_tanh"}),
}


def _both(
    source: ir.Model, kernels: tuple[Kernel, ...], feeds: dict[str, np.ndarray], folder: Path
) -> list[dict[str, np.ndarray]]:
    """What the functions give, inlined, and the products that the library has cuBLASLt compute."""
    ir.save(source, folder / "fused.onnx")
    inlined = sessions.run(sessions.open_session(folder / "fused.onnx"), feeds)
    ((found,),) = idle_gpu.products(folder / "run", [(ir.to_proto(source), kernels, [feeds])])
    return [inlined, found]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", _LAYERS)
def test_results_do_not_change(name: str, tmp_path: Path) -> None:
    """The original in ONNX Runtime, the functions inlined, and the products that the library has cuBLASLt compute."""
    layer, fields = _LAYERS[name]
    proto = model(layer)
    onnx.checker.check_model(proto, full_check=True)
    source = ir.from_proto(proto)
    kernels = fused(source)
    (gemm,) = gemms(kernels)
    assert gemm.inputs[gemm.a] == gemm.inputs[gemm.b] == FLOAT8
    assert gemm.transpose_b and not gemm.transpose_a and not gemm.unread
    assert {field: getattr(gemm, field) for field in fields} == fields
    (norm,) = [k for k in kernels if "LayerNormalization" in k.ops]
    assert norm.program.outputs == (FLOAT8,)  # type: ignore[attr-defined]
    onnx.save(proto, tmp_path / "original.onnx")
    rng = np.random.default_rng(2)
    wanted_of = sessions.open_session(tmp_path / "original.onnx")
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 19 for d in i.shape]).astype(layer.storage)
        for i in wanted_of.get_inputs()
    }
    wanted = sessions.run(wanted_of, feeds)
    for found in _both(source, kernels, feeds, tmp_path):
        for output, value in wanted.items():
            assert (found[output].dtype, found[output].shape) == (value.dtype, value.shape)
            scale = np.abs(value.astype(np.float64)).max()
            error = np.abs(found[output].astype(np.float64) - value)
            # A code may fall on the other side where the norm's last bit differs.
            assert error.max() <= 2e-2 * scale and error.mean() <= 1e-3 * scale


@pytest.mark.parametrize(
    "layer",
    [
        Layer(rows=6, columns=256),  # more rows than the kernel for few of them takes, and few for cuBLASLt
        Layer(columns=136),  # no multiple of 16
        Layer(columns=64),  # small
        Layer(weight=ml_dtypes.float8_e5m2),
        Layer(depth=120),
    ],
)
def test_what_runs_in_16_bits(layer: Layer) -> None:
    source = ir.from_proto(model(layer))
    (gemm,) = gemms(fused(source))
    assert gemm.operands == "float16"


def test_gpus_without_8_bit_floats_get_16_bits() -> None:
    source = ir.from_proto(model(Layer()))
    (gemm,) = gemms(fused(source, eight_bits=False))
    assert gemm.operands == "float16"


def test_a_weight_keeps_its_bytes() -> None:
    source = ir.from_proto(model(Layer(scales=(0.02, 0.02))))
    before = sum(i.const_value.nbytes for i in source.graph.initializers.values() if i.const_value is not None)
    fused(source)
    after = sum(i.const_value.nbytes for i in source.graph.initializers.values() if i.const_value is not None)
    assert after <= before


def test_an_activation_is_computed_where_codes_are_stored() -> None:
    """A second kernel has to store the codes anyway, and computes a Gelu for less than cuBLASLt's epilogue."""
    proto = model(Layer(gelu=True))
    (scale,) = [i.name for i in proto.graph.initializer if i.name == "c0"]
    proto.graph.node.append(helper.make_node("QuantizeLinear", ["y0", scale, "c1"], ["z"], "z"))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT8E4M3FN, [2, "N", 144]))
    kernels = fused(ir.from_proto(proto))
    (gemm,) = gemms(kernels)
    assert (gemm.bias, gemm.activation) == (None, "none")
    (last,) = [k for k in kernels if k.kind.name == "pointwise"]
    assert last.ops == ("Add", "Gelu", "QuantizeLinear") and last.program.outputs == (FLOAT8,)  # type: ignore[attr-defined]


def _define(source: ir.Model, name: str, codes: np.ndarray) -> None:
    """Give a value that a text could not define its constant."""
    tensor = ir.tensor(np.ascontiguousarray(codes), name=name)
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    source.graph.register_initializer(value)
    for node in source.graph:
        for k, given in enumerate(node.inputs):
            if given is not None and given.name == name:
                node.replace_input_with(k, value)


def test_products_of_unequal_widths_are_one_product_and_slices() -> None:
    """As k and v of grouped attention, whose kernel reads its columns where they lie."""
    body = [
        "n = LayerNormalization(x, g, g)  q = QuantizeLinear<output_dtype = 17>(n, s)  a = DequantizeLinear(q, s)",
        "v = DequantizeLinear(c, s)  w = DequantizeLinear(d, s)  h = MatMul(a, v)  k = MatMul(a, w)",
        "r = Reshape(h, four)  t = Reshape(k, two)  y = Neg(r)  z = Relu(t)",
    ]
    codes = np.random.default_rng(1).standard_normal((_DEPTH, 256)).astype(_E4M3)
    source = graph(
        f"float16[2, 32, {_DEPTH}] x, float16[{_DEPTH}] g",
        "float16[2, 32, 4, 64] y, float16[2, 32, 2, 64] z",
        "  ".join(body),
        constants="float16 s = {11878}, int64[4] four = {2, 32, 4, 64}, int64[4] two = {2, 32, 2, 64}",
        opset=21,
    )
    _define(source, "c", codes)
    _define(source, "d", codes[:, :128])
    kernels = fused(source)
    (gemm,) = gemms(kernels)
    assert gemm.outputs == ("float16",)
    assert sorted(k.ops for k in kernels if k.kind.name == "pointwise") == [
        ("Slice", "Reshape", "Neg"), ("Slice", "Reshape", "Relu")
    ]  # fmt: skip


def test_a_residual_reads_the_codes_that_the_product_needs_anyway() -> None:
    """It waits for the product, so the norm in front of both has no reason to store float16 numbers beside codes."""
    proto = model(Layer(columns=_DEPTH, residual=True))
    (add,) = [n for n in proto.graph.node if n.output[0] == "s0"]
    add.input[1] = "a"
    (relu,) = [n for n in proto.graph.node if n.output[0] == "y0"]
    relu.CopyFrom(helper.make_node("LayerNormalization", ["s0", "c2", "c2"], ["y0"], "y0"))
    kernels = fused(ir.from_proto(proto))
    first, last = (k for k in kernels if "LayerNormalization" in k.ops)
    assert first.ops == ("LayerNormalization", "QuantizeLinear")
    assert first.program.outputs == (FLOAT8,)  # type: ignore[attr-defined]
    assert last.ops[0] == "DequantizeLinear" and FLOAT8 in last.program.inputs  # type: ignore[attr-defined]


@pytest.mark.usefixtures("library")
def test_scales_of_rows_are_computed_by_the_norm_in_front(tmp_path: Path) -> None:
    """One kernel stores the codes and the scale of each row, the next multiplies, the last one scales."""
    body = (
        "n = LayerNormalization(x, g, g)  b = Abs(n)  t = ReduceMax<keepdims = 1>(b, last)  e = Max(t, least)  "
        "r = Div(e, top)  d = Div(n, r)  q = Cast<to = 17>(d)  a = Cast<to = 10>(q)  w = DequantizeLinear(c, u)  "
        "m = MatMul(a, w)  v = Mul(m, r)  y = Add(v, h)"
    )
    constants = "int64[1] last = {-1}, float16 least = {1024}, float16 top = {24320}, float16 u = {7168}"
    source = graph(
        f"float16[N, {_DEPTH}] x, float16[{_DEPTH}] g, float16[144] h", "float16[N, 144] y", body,
        constants=constants, opset=20,
    )  # fmt: skip
    _define(source, "c", (np.random.default_rng(1).standard_normal((_DEPTH, 144)) * 40).astype(_E4M3))
    ir.save(source, tmp_path / "original.onnx")
    kernels = fused(source)
    (gemm,) = gemms(kernels)
    assert gemm.operands == FLOAT8
    (norm,) = [k for k in kernels if "LayerNormalization" in k.ops]
    assert set(norm.program.outputs) == {FLOAT8, "float16"}  # type: ignore[attr-defined]
    rng = np.random.default_rng(2)
    feeds = {"x": rng.standard_normal((37, _DEPTH)), "g": rng.uniform(0.5, 1.5, _DEPTH), "h": rng.standard_normal(144)}
    feeds = {name: array.astype(np.float16) for name, array in feeds.items()}
    (wanted,) = sessions.run(sessions.open_session(tmp_path / "original.onnx"), feeds).values()
    for (found,) in (outputs.values() for outputs in _both(source, kernels, feeds, tmp_path)):
        error = np.abs(found.astype(np.float64) - wanted)
        assert error.max() <= 2e-2 * np.abs(wanted).max() and error.mean() <= 2e-3 * np.abs(wanted).max()

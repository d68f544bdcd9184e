"""Models after each of onnxruntime's quantizers, and saved by its optimizer at each level, are optimized and equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

import models
import onnxopt
from onnxopt.artifact.manifest import Manifest
from onnxopt.errors import ModelError
from onnxopt.graph import normalize, read
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes import shapes
from onnxopt.pipeline import flow
from onnxopt.tools import explain
from tests.support import fusing, sampling
from tests.support.decoders import genai_graphs
from tests.support.graphs import graph
from tests.support.precision import quantized_models

_ON_CONVOLUTIONS = ("pre_process", "qdq_u8i8", "qdq_i8_channels", "qdq_u8_reduced", "qoperator", "dynamic_channels")
_CASES = [("bert_tiny", tool) for tool in quantized_models.TOOLS]
_CASES += [("efficientnet_tiny", tool) for tool in _ON_CONVOLUTIONS]
_CASES += [("llama_tiny", tool) for tool in ("qdq_u8i8", "nbits_4_16_zero_points", "dynamic")]


def _optimized(model: Path, folder: Path) -> Manifest:
    manifest = flow.optimize(model, folder, archs=()).manifest
    assert manifest.verify.status == "passed"
    assert not manifest.left_out
    return manifest


def _in_turn() -> Iterator[Any]:
    """Each case with a level of the optimizer, in turn. In every run the first one of each model and level."""
    levels, had = [*quantized_models.LEVELS], set[tuple[str, str]]()
    for number, (name, tool) in enumerate(_CASES):
        level = levels[number % len(levels)]
        yield pytest.param(name, tool, level, marks=pytest.mark.exhaustive if (name, level) in had else ())
        had.add((name, level))


# More blocks of codes. In every run bert_tiny has 4 bits without zero points and 8 with them, llama_tiny 4 with them.
_ALIKE = [("bert_tiny", tool) for tool in ("nbits_4_16_zero_points", "nbits_4_256_zero_points", "nbits_8_128")]
# What another model has of the same tool.
_ALIKE += [("bert_tiny", "pre_process"), ("bert_tiny", "qdq_i8_channels"), ("efficientnet_tiny", "qdq_u8_reduced")]
_ALIKE += [("llama_tiny", "qdq_u8i8"), ("efficientnet_tiny", "dynamic_channels")]
# What is optimized below as a session of ONNX Runtime saved it.
_ALIKE += [("efficientnet_tiny", "qdq_u8i8"), ("efficientnet_tiny", "pre_process")]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "tool"),
    [pytest.param(*case, marks=pytest.mark.exhaustive if case in _ALIKE else ()) for case in _CASES],
)
def test_a_quantized_model_is_optimized(name: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the tools write into the current folder
    _optimized(quantized_models.quantized(models.path(name), tool, tmp_path), tmp_path / "plain")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("name", "tool", "level"), list(_in_turn()))
def test_a_quantized_model_that_the_optimizer_saved_is_optimized(
    name: str, tool: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = quantized_models.quantized(models.path(name), tool, tmp_path)
    _optimized(quantized_models.saved_by_ort(made, level), tmp_path / level)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["bert_tiny", "efficientnet_tiny"])
def test_a_model_saved_by_the_optimizer_is_optimized(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    onnx.save(onnx.load(models.path(name)), copy)
    for level in quantized_models.LEVELS:
        _optimized(quantized_models.saved_by_ort(copy, level), tmp_path / level)


def _computed(proto: onnx.ModelProto) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every value that ONNX Runtime computes in a static model."""
    extended = onnx.ModelProto()
    extended.CopyFrom(proto)
    known = {o.name for o in proto.graph.output}
    names = [o for n in proto.graph.node for o in n.output[:1] if o not in known]
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(extended.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = quantized_models.drawn(session)
    results = session.run([o.name for o in session.get_outputs()], feeds)
    return {o.name: (str(r.dtype), r.shape) for o, r in zip(session.get_outputs(), results, strict=True)}


@pytest.mark.parametrize(
    ("name", "tool"),
    [pytest.param(*case, marks=pytest.mark.exhaustive if k % 2 else ()) for k, case in enumerate(_CASES)]
    + [("efficientnet_tiny", "qdq_u16")],
)
def test_every_value_of_a_quantized_model_has_its_dtype_and_dims(
    name: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = quantized_models.quantized(models.path(name), tool, tmp_path)
    model = normalize.normalize(read.load(quantized_models.saved_by_ort(made, "all")).model).model
    ir.external_data.load_to_model(model)
    known, computed = shapes.infer(model), _computed(ir.to_proto(model))
    for value in (v for node in model.graph for v in node.outputs[:1] if v.name in computed):
        dtype, dims = known.ir_dtype(value), known.dims(value)
        assert dtype is not None and dims is not None, value
        assert (str(dtype.numpy()), len(dims)) == (computed[value.name][0], len(computed[value.name][1])), value
        assert all(a == b for a, b in zip(dims, computed[value.name][1], strict=True) if isinstance(a, int)), value


@pytest.mark.parametrize("bits", [4, 8])
def test_dims_of_a_genai_graph_keep_their_symbols(bits: int) -> None:
    model = ir.from_proto(genai_graphs.genai(bits=bits))
    known = shapes.infer(model)
    dims = {v.name: known.dims(v) for node in model.graph for v in node.outputs}
    rows = ("batch_size", "sequence_length")
    assert dims["embedded"] == dims["layers.0.attention"] == dims["layers.1.next.sum"] == (*rows, 64)
    assert dims["layers.0.gate"] == dims["layers.1.gated"] == (*rows, 96)
    assert dims["logits"] == (*rows, 50)


# --- names ---


@pytest.mark.parametrize("name", ["gemm_input_shape", "gemm_output_shape_token_3", "fused_Split"])
def test_no_value_keeps_a_name_that_the_optimizer_gives(name: str) -> None:
    model = graph("float[2, 3] x", "float[2, 3] y", f"{name} = Relu(x) y = Abs({name})")
    UniqueNamesPass()(model)
    assert [v.name for v in model.graph.node(0).outputs] == [f"{name}_1"]
    assert not UniqueNamesPass()(model).modified


def test_names_of_the_interface_are_kept_all_the_same() -> None:
    model = graph("float[2, 3] gemm_input_shape", "float[2, 3] y", "y = Relu(gemm_input_shape)")
    UniqueNamesPass()(model)
    assert model.graph.inputs[0].name == "gemm_input_shape"


# --- graphs of genai's shape ---


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("bits", "zero_points", "dtype"),
    sampling.pairs(itertools.product([4, 8], [False, True], [TensorProto.FLOAT, TensorProto.FLOAT16])),
)
def test_all_around_the_products_of_a_genai_graph_is_fused(
    bits: int, zero_points: bool, dtype: int, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(genai_graphs.genai(bits=bits, zero_points=zero_points, dtype=dtype), model)
    manifest = _optimized(model, tmp_path / "out")
    regions = [set(kernel.ops) for kernel in manifest.kernels for _ in kernel.sites]
    assert regions.count({"Split", "Sigmoid", "Mul"}) == 2  # SiLU and the gate, behind one product, of both layers
    assert any("ReduceMean" in ops and "Pow" in ops for ops in regions)  # the first norm


@pytest.mark.usefixtures("library")
def test_products_of_packed_codes_in_float16(tmp_path: Path) -> None:
    """As `quantize` and genai's builder write them in float32, and as float16 models have them."""
    model = tmp_path / "model.onnx"
    onnx.save(genai_graphs.genai(layers=1), model)
    made = flow.optimize(model, tmp_path / "out", archs=("sm_90",), precision="float16")
    assert made.manifest.verify.status == "passed" and not made.manifest.left_out
    packed = [k for k in made.manifest.kernels if "MatMulNBits" in k.ops]
    assert sum(len(k.sites) for k in packed) == 5  # q, k and v; out; gate and up; down; the last one
    assert [k.ops for k in packed if len(k.ops) > 1] == [("MatMulNBits", "Split", "Sigmoid", "Mul", "Mul")]
    assert {k.inputs[0] for k in packed} == {"float16"} == {k.outputs[0] for k in packed}
    (line,) = {s for s in explain.explain(tmp_path / "out", kernels=True).splitlines() if "cuBLASLt" in s}
    assert line.strip() == "few rows read the codes; more of them run as a call of cuBLASLt"


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_norm_of_onnx_runtime_in_onnxs_domain_is_spelled_out(dtype: str, opset: int, tmp_path: Path) -> None:
    body = "n = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(x, g) y = Relu(n)"
    proto = graph(f"{dtype}[N, 5, 40] x, {dtype}[40] g", f"{dtype}[N, 5, 40] y", body, opset=opset)
    ir.save(proto, tmp_path / "model.onnx")
    model = normalize.normalize(read.load(tmp_path / "model.onnx").model).model
    assert "SimplifiedLayerNormalization" not in {node.op_type for node in model.graph}
    rng = np.random.default_rng(1)
    storage = np.float16 if dtype == "float16" else np.float32
    feeds = {"x": rng.standard_normal((2, 5, 40)).astype(storage), "g": rng.standard_normal(40).astype(storage)}
    before, after = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for m in (ir.to_proto(proto), ir.to_proto(model))
    )
    np.testing.assert_allclose(after, before, rtol=4 * np.finfo(storage).eps, atol=4 * np.finfo(storage).eps)


@pytest.mark.parametrize(
    "body",
    [
        "n, s = SimplifiedLayerNormalization<axis = -1>(x, g) t = Add(n, s) y = Relu(t)",
        "n = SimplifiedLayerNormalization<axis = -1, stash_type = 10>(x, g) y = Relu(n)",
    ],
)
def test_a_norm_whose_deviation_is_read_or_that_computes_in_16_bits_stays(body: str, tmp_path: Path) -> None:
    ir.save(graph("float[N, 5, 40] x, float[40] g", "float[N, 5, 40] y", body, opset=21), tmp_path / "model.onnx")
    model = normalize.normalize(read.load(tmp_path / "model.onnx").model).model
    assert "SimplifiedLayerNormalization" in {node.op_type for node in model.graph}


def test_layer_normalization_of_onnx_runtime_before_opset_17_is_read(tmp_path: Path) -> None:
    body = "n = LayerNormalization<axis = -1>(x, g, g) y = Relu(n)"
    ir.save(graph("float[N, 5, 40] x, float[40] g", "float[N, 5, 40] y", body, opset=14), tmp_path / "model.onnx")
    _optimized(tmp_path / "model.onnx", tmp_path / "out")


def test_an_operator_that_nobody_has_is_still_refused(tmp_path: Path) -> None:
    ir.save(graph("float[2] x", "float[2] y", "y = SimplifiedNorm(x)", opset=21), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="SimplifiedNorm"):
        read.load(tmp_path / "model.onnx")


# --- attention and norms in quantized graphs ---


@pytest.fixture
def no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is fused: that such kernels compile is tested with their kinds."""
    fusing.compile_nothing(monkeypatch)


def _linear_quantized(folder: Path) -> Path:
    """bert_tiny with Q and DQ around the products with weights alone, as for attention in 16 bits."""
    prepared = quantized_models.quantized(models.path("bert_tiny"), "pre_process", folder)
    weights = {i.name for i in onnx.load(prepared).graph.initializer}
    nodes = onnx.load(prepared).graph.node
    inner = [n.name for n in nodes if n.op_type == "MatMul" and not weights & set(n.input)]
    assert len(inner) == 4
    return quantized_models.quantized_around_products(prepared, folder, leave=inner)


@pytest.mark.usefixtures("library", "no_machine_code")
def test_attention_is_found_between_quantized_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = flow.optimize(_linear_quantized(tmp_path), tmp_path / "out", archs=("sm_90",)).manifest
    assert manifest.verify.status == "passed" and not manifest.left_out
    assert manifest.rewrites["attention"] == 2
    regions = [kernel.ops for kernel in manifest.kernels for _ in kernel.sites]
    # Norms take in the codes on both sides, and the Transposes around the attention are gone.
    assert sum({"QuantizeLinear", "LayerNormalization", "DequantizeLinear"} <= set(ops) for ops in regions) >= 4
    turned = [kernel.kind for kernel in manifest.kernels if "Transpose" in kernel.ops]
    assert set(turned) == {"gemm"}  # of weights


@pytest.mark.usefixtures("library", "no_machine_code")
def test_attention_whose_scores_are_rounded_to_codes_stays_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = quantized_models.quantized(models.path("bert_tiny"), "qdq_i8_channels", tmp_path)
    manifest = flow.optimize(made, tmp_path / "out", archs=("sm_90",)).manifest
    assert manifest.verify.status == "passed" and not manifest.left_out
    reasons = [refusal.reason for refusal in manifest.refusals if refusal.op_type == "Softmax"]
    assert len(reasons) == 2
    assert all("rounds to codes between the product of q and k and Softmax" in reason for reason in reasons)
    assert not any("integer" in refusal.reason for refusal in manifest.refusals)  # true of the CPU provider only
    assert any("products are stored as float16 for CUDA: 0.1 MB instead of" in note for note in manifest.notes)
    launches = [kernel.kind for kernel in manifest.kernels for _ in kernel.sites]
    assert launches.count("gemm") == 12  # of each layer q, k and v at once, two of attention, and three more
    softmax = [set(kernel.ops) for kernel in manifest.kernels if "Softmax" in kernel.ops]
    assert softmax and all({"QuantizeLinear", "DequantizeLinear", "Softmax", "Where"} <= ops for ops in softmax)


@pytest.mark.usefixtures("library")
def test_a_norm_that_was_spelled_out_is_found_between_codes(tmp_path: Path) -> None:
    body = (
        "f = DequantizeLinear(u, s, z)  m = ReduceMean<keepdims = 1>(f, a)  c = Sub(f, m)  p = Mul(c, c)  "
        "v = ReduceMean<keepdims = 1>(p, a)  e = Add(v, eps)  r = Sqrt(e)  n = Div(c, r)  w = Mul(n, g)  "
        "y = QuantizeLinear(w, s, z)"
    )
    constants = "float s = {0.05}, uint8 z = {128}, int64[1] a = {-1}, float eps = {0.00001}"
    model = graph("uint8[N, 64] u, float[64] g", "uint8[N, 64] y", body, constants=constants)
    ir.save(model, tmp_path / "model.onnx")
    manifest = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=("sm_90",), emulate=True).manifest
    assert manifest.verify.status == "passed" and not manifest.left_out
    (kernel,) = manifest.kernels
    assert (kernel.kind, len(kernel.ops), kernel.inputs, kernel.outputs) == (
        "rowwise", 10, ("uint8", "float32"), ("uint8",),
    )  # fmt: skip


# --- graphs that no tool of ONNX Runtime writes ---

_PAIR = "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  "
# name: opset, dtype, body, constants; x and y are [3, 8], all of one dtype
_WRITTEN = {
    "fp8": (19, "float", _PAIR + "w = DequantizeLinear(w8, sw)  p = MatMul(a, w)  y = Relu(p)",
            "float s = {0.02}, float8e4m3fn z = {0}, float sw = {0.1}, float8e4m3fn[8, 8] w8"),
    "fp8 of float16": (19, "float16", _PAIR + "w = DequantizeLinear(w8, sw)  p = MatMul(a, w)  y = Relu(p)",
                       "float16 s, float8e4m3fn z = {0}, float16 sw, float8e4m3fn[8, 8] w8"),
    "fp8 e5m2": (21, "float", _PAIR + "w = DequantizeLinear(w8, sw)  p = MatMul(a, w)  y = Relu(p)",
                 "float s = {0.02}, float8e5m2 z = {0}, float sw = {0.1}, float8e5m2[8, 8] w8"),
    "float weights quantized per channel": (
        17, "float", _PAIR + "c = QuantizeLinear<axis = 1>(f, sc, zc)  w = DequantizeLinear<axis = 1>(c, sc, zc)  "
        "p = MatMul(a, w)  y = Relu(p)",
        "float s = {0.02}, int8 z = {0}, float[8] sc, int8[8] zc = {0, 0, 0, 0, 0, 0, 0, 0}, float[8, 8] f"),
    "int4 weights in blocks": (
        21, "float", "w = DequantizeLinear<axis = 0, block_size = 4>(w4, sb)  p = MatMul(x, w)  y = Relu(p)",
        "int4[8, 8] w4, float[2, 8] sb"),
    "uint4 weights in blocks with zero points": (
        21, "float", "w = DequantizeLinear<axis = 0, block_size = 4>(w4, sb, zb)  p = MatMul(x, w)  y = Relu(p)",
        "uint4[8, 8] w4, float[2, 8] sb, uint4[2, 8] zb"),
    "16-bit codes": (21, "float", _PAIR + "y = Tanh(a)", "float s = {0.0003}, uint16 z = {30000}"),
    "dynamic": (
        17, "float", "q, s, z = DynamicQuantizeLinear(x)  a = DequantizeLinear(q, s, z)  y = Tanh(a)", ""),
}  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", _WRITTEN)
def test_written_by_others(case: str, tmp_path: Path) -> None:
    opset, dtype, body, constants = _WRITTEN[case]
    quantized_models.save_text(f"{dtype}[3, 8] x", f"{dtype}[3, 8] y", body, constants, opset, tmp_path / "model.onnx")
    manifest = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=["sm_90"]).manifest
    assert manifest.verify.status == "passed"
    assert not manifest.left_out
    session = onnxopt.load(tmp_path / "out")
    session.run(None, {"x": np.ones((3, 8), np.float16 if dtype == "float16" else np.float32)})
    for level in ("basic",) if case.startswith("fp8") else quantized_models.LEVELS:  # ORT cannot save the others
        saved = quantized_models.saved_by_ort(tmp_path / "model.onnx", level)
        manifest = flow.optimize(saved, tmp_path / f"out_{level}", archs=["sm_90"]).manifest
        assert manifest.verify.status == "passed"


# --- the CPU provider's own kernels ---

_INTEGER = ("QLinear", "QGemm", "QAttention", "MatMulInteger", "DynamicQuantize")  # how their names begin


def _integer_kernels(model: Path, library: Path | None, folder: Path) -> tuple[int, int]:
    """How many integer kernels ONNX Runtime's CPU provider finds in a model.

    The second number counts the columns of constant weights, as products of one input become one product.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    if library is not None:
        options.register_custom_ops_library(str(library))
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(folder / "optimized.onnx").graph
    columns = {i.name: i.dims[-1] for i in graph.initializer if len(i.dims) == 2}
    found = [node for node in graph.node if node.op_type.startswith(_INTEGER)]
    weights = [columns[name] for node in found if "MatMul" in node.op_type for name in node.input if name in columns]
    return len(found) - len(weights), sum(weights)


@pytest.mark.usefixtures("library", "no_machine_code")
@pytest.mark.parametrize(
    ("name", "tool", "archs"),
    [
        ("bert_tiny", "qdq_u8i8", ()), ("bert_tiny", "qdq_i8_channels", ()), ("bert_tiny", "dynamic", ()),
        ("vit_tiny", "qdq_u8i8", ()), ("efficientnet_tiny", "qdq_i8_channels", ()), ("llama_tiny", "qdq_u8i8", ()),
        ("bert_tiny", "dynamic", ("sm_90",)), ("efficientnet_tiny", "qdq_i8_channels", ("sm_90",)),
        ("llama_tiny", "qdq_u8i8", ("sm_90",)),
    ],
)  # fmt: skip
def test_the_cpu_provider_finds_its_integer_kernels_in_the_artifact_too(
    name: str, tool: str, archs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = quantized_models.quantized(models.path(name), tool, tmp_path)
    artifact = flow.optimize(made, tmp_path / "out", archs=archs, verify=False).path
    library = next((artifact / "lib").glob("*.so"), None)
    wanted = _integer_kernels(made, None, tmp_path)
    assert sum(wanted) > 0
    for path in (None, library):
        found = _integer_kernels(artifact / "model.onnx", path, tmp_path)
        assert found[0] >= wanted[0] and found[1] >= wanted[1]

"""Models after each of onnxruntime's quantizers, and saved by its optimizer at each level, are optimized and equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

import models
from onnxopt import pipeline
from onnxopt.artifact.manifest import Manifest
from onnxopt.errors import ModelError
from onnxopt.graph import normalize, read
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes import shapes
from tests.support import quantized_models
from tests.support.graphs import graph

_ON_CONVOLUTIONS = ("pre_process", "qdq_u8i8", "qdq_i8_channels", "qdq_u8_reduced", "qoperator", "dynamic_channels")
_CASES = [("bert_tiny", tool) for tool in quantized_models.TOOLS]
_CASES += [("efficientnet_tiny", tool) for tool in _ON_CONVOLUTIONS]
_CASES += [("llama_tiny", tool) for tool in ("qdq_u8i8", "nbits_4_16_zero_points", "dynamic")]


def _optimized(model: Path, folder: Path) -> Manifest:
    manifest = pipeline.optimize(model, folder, archs=()).manifest
    assert manifest.verify.status == "passed"
    assert not manifest.left_out
    return manifest


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("name", "tool"), _CASES)
def test_a_quantized_model_is_optimized(name: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the tools write into the current folder
    made = quantized_models.quantized(models.path(name), tool, tmp_path)
    _optimized(made, tmp_path / "plain")
    for level in quantized_models.LEVELS:
        _optimized(quantized_models.saved_by_ort(made, level), tmp_path / level)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["bert_tiny", "efficientnet_tiny"])
def test_a_model_saved_by_the_optimizer_is_optimized(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    onnx.save(onnx.load(models.path(name)), copy)
    for level in quantized_models.LEVELS:
        _optimized(quantized_models.saved_by_ort(copy, level), tmp_path / level)


@pytest.mark.parametrize(("name", "tool"), [*_CASES, ("efficientnet_tiny", "qdq_u16")])
def test_every_value_of_a_quantized_model_has_a_dtype_and_a_rank(
    name: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = quantized_models.quantized(models.path(name), tool, tmp_path)
    for level in ("extended", "all"):
        model = normalize.normalize(read.load(quantized_models.saved_by_ort(made, level)).model).model
        known = shapes.infer(model)
        values = [v for node in model.graph for v in node.outputs[:1]]
        unknown = [str(v) for v in values if known.ir_dtype(v) is None or known.dims(v) is None]
        assert not unknown


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
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_all_around_the_products_of_a_genai_graph_is_fused(
    bits: int, zero_points: bool, dtype: int, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(quantized_models.genai(bits=bits, zero_points=zero_points, dtype=dtype), model)
    manifest = _optimized(model, tmp_path / "out")
    regions = [set(kernel.ops) for kernel in manifest.kernels for _ in kernel.sites]
    assert regions.count({"Sigmoid", "Mul"}) == 2  # SiLU and the gate, of both layers
    assert any("ReduceMean" in ops and "Pow" in ops for ops in regions)  # the first norm


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

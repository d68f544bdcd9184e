"""Products with an exact GELU or a SiLU on the GPU, by every entry point, against float64."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.kinds.gemm import large_products
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.conftest import device_arch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]
_STORED = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
_ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A product with a bias and an activation, and one behind it. rows: at run time, one call each."""

    columns: int
    depth: int
    rows: tuple[int, ...]
    dtype: str = "float16"
    transposed: bool = False
    bias: bool = True
    batch: int = 0
    silu: bool = False


def _write(layer: Layer, weights: dict[str, np.ndarray], path: Path) -> None:
    dtype = _ELEMENTS[layer.dtype]
    product = helper.make_node(
        *(("Gemm", ["a", "w", *(["b"] if layer.bias else [])]) if layer.transposed else ("MatMul", ["a", "w"])),
        ["h"], **({"transB": 1} if layer.transposed else {}),
    )  # fmt: skip
    sum_ = "c" if layer.bias and not layer.transposed else "h"
    silu = [helper.make_node("Sigmoid", [sum_], ["s"]), helper.make_node("Mul", [sum_, "s"], ["g"])]
    activation = silu if layer.silu else [helper.make_node("Gelu", [sum_], ["g"])]
    add = [helper.make_node("Add", ["h", "b"], ["c"])] if layer.bias and not layer.transposed else []
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=dtype), product, *add,
        *activation, helper.make_node("MatMul", ["g", "one"], ["z"]),
        helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]  # fmt: skip
    lead: list[int | str] = [layer.batch] if layer.batch else []
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*lead, "rows", layer.depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*lead, "rows", layer.columns])],
        [helper.make_tensor(n, dtype, w.shape, w.tobytes(), raw=True) for n, w in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def _activated(x: np.ndarray, silu: bool) -> np.ndarray:
    if silu:
        return x / (1 + np.exp(-x))
    return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))


LAYERS = [
    Layer(3072, 768, (1, 5, 300, 1024, 2048)), Layer(1536, 384, (129, 1537), transposed=True),
    Layer(504, 200, (2000, 4099, 8200)), Layer(768, 192, (513, 6000), "bfloat16"),
    Layer(520, 136, (3000, 5000), "bfloat16", transposed=True), Layer(1024, 1000, (1500,), bias=False),
    Layer(1020, 96, (1000,)), Layer(640, 64, (400,), batch=5),
    Layer(3072, 768, (1, 5, 300, 1024, 2048), "float32"), Layer(500, 100, (2000, 4099), "float32"),
    Layer(520, 136, (3000,), "float32", transposed=True, bias=False), Layer(384, 1000, (700,), "float32", batch=2),
    Layer(768, 256, (1, 300, 4099), silu=True), Layer(520, 136, (3000,), "bfloat16", transposed=True, silu=True),
    Layer(512, 256, (1, 300, 4099), "float32", silu=True),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("columns", [0, 128, 192, 256])
def test_activations(layer: Layer, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """columns: of the only tile that the artifact has; 0 for all of them. The product behind is with the identity."""
    if columns:
        monkeypatch.setattr(large_products, "_STAGES", {columns: large_products._STAGES[columns]})
    rng, stored = np.random.default_rng(layer.columns), _STORED[layer.dtype]
    weights = {"w": rng.standard_normal((layer.depth, layer.columns)) / layer.depth**0.5}
    if layer.transposed:
        weights["w"] = np.ascontiguousarray(weights["w"].T)
    if layer.bias:
        weights["b"] = rng.standard_normal(layer.columns)
    weights["one"] = np.eye(layer.columns)
    weights = {n: w.astype(stored) for n, w in weights.items()}
    _write(layer, weights, tmp_path / "m.onnx")
    made = flow.optimize(tmp_path / "m.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    names = [name.rpartition("_")[2] for kernel in made.manifest.kernels for name in kernel.variants]
    assert "activation" in names and (f"tiles{columns}" in names or not columns)
    session = made.session(providers=[sessions.CUDA])
    wide = {n: w.astype(np.float64) for n, w in weights.items()}
    for rows in layer.rows:
        lead = (layer.batch,) if layer.batch else ()
        x = rng.standard_normal((*lead, rows, layer.depth)).astype(stored)
        (found,) = session.run(None, {"x": x.astype(np.float32)})
        y = x.astype(np.float64) @ (wide["w"].T if layer.transposed else wide["w"]) + wide.get("b", 0)
        bound = 1.6e-2 if layer.dtype == "bfloat16" else 2e-3  # of float32 both products run on TF32
        np.testing.assert_allclose(found.astype(np.float64), _activated(y, layer.silu), rtol=bound, atol=bound)

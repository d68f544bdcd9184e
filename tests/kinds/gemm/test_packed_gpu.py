"""Products with weights of 4 and 8 bits on the GPU: random ones, with few rows and many, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, outline
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.kinds.packed_weights import STORED, Products, Weight
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COUNT = 24  # random products of each dtype
_ROWS = (1, 2, 5, 8, 9, 17, 40, 41, 100)
# Of the largest result: half an ulp of the storage dtype and what float32 sums lose. More rows than read the codes read
# weights that are rounded once more.
_TOLERANCE = {"float16": 7e-4, "bfloat16": 5.5e-3}


def _random_weight(rng: np.random.Generator, dtype: str) -> Weight:
    bits, group = int(rng.choice([4, 8])), int(rng.choice([16, 32, 64, 128, 256]))
    depth = int(rng.integers(1, 200)) * 16
    if group == 16 and bits == 4:
        depth += depth % 32  # rows of whole 16 bytes
    columns = int(rng.choice([rng.integers(1, 300), rng.integers(300, 9000)]))
    return Weight(columns, depth, bits, group, str(rng.choice(["middle", "codes", "floats"])), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_products(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    products, inputs, outputs = Products(), {}, {}
    weights = [_random_weight(rng, dtype) for _ in range(_COUNT)]
    for k, weight in enumerate(weights):
        products.node("Cast", [f"x{k}"], f"c{k}", to=ir.DataType[dtype.upper()].value)
        name = products.product(f"p{k}", f"c{k}", weight)
        if k % 3 == 1:
            products.node("Relu", [name], f"r{k}")
        if k % 3 == 2:
            products.node("Cast", [f"s{k}"], f"c{k}s", to=ir.DataType[dtype.upper()].value)
            products.node("Add", [name, f"c{k}s"], f"r{k}")
            inputs[f"s{k}"] = ("float32", ["rows", weight.columns])
        products.node("Cast", [f"r{k}" if k % 3 else name], f"y{k}", to=ir.DataType.FLOAT.value)
        inputs[f"x{k}"], outputs[f"y{k}"] = ("float32", ["rows", weight.depth]), "float32"
    session = _session(products.model(inputs, outputs), tmp_path)
    for rows in _ROWS:
        feeds = {n: rng.standard_normal((rows, dims[1])).astype(np.float32) for n, (_, dims) in inputs.items()}
        found = sessions.run(session, feeds)
        for k, weight in enumerate(weights):
            expected = _stored(feeds[f"x{k}"], dtype) @ products.weights[f"p{k}"].T
            if k % 3 == 1:
                expected = np.maximum(expected, 0)
            if k % 3 == 2:
                expected = expected + _stored(feeds[f"s{k}"], dtype)
            error = np.abs(found[f"y{k}"] - expected).max() / max(np.abs(expected).max(), 1e-3)
            assert error <= _TOLERANCE[dtype], (weight, rows, error)


def _session(proto: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    """On the GPU, with the library; without bodies of functions, so that nothing else can run the kernels."""
    model = ir.serde.deserialize_model(proto)
    kernels = outline(model, fuse(model))
    assert any("MatMulNBits" in kernel.ops for kernel in kernels)
    fatbin = nvrtc.compile_cuda(generate.generate(kernels), [device_arch()])
    library = write_library(folder / "lib", kernels_json.to_json(kernels, fatbin), fatbin)
    optimized = ir.serde.serialize_model(model)
    optimized = with_wrong_bodies(optimized)
    onnx.save(optimized, folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", provider=sessions.CUDA, library=library)


def _stored(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(STORED[dtype]).astype(np.float64)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [1202, 9004])
def test_gate_and_up(bits: int, columns: int, tmp_path: Path) -> None:
    products, half = Products(), columns // 2
    weight = Weight(columns, 544, bits, zeros="codes")
    products.constant("sizes", np.array([half, half]))
    products.split(products.product("p", "x", weight), "sizes", ["g", "u"])
    products.node("Sigmoid", ["g"], "s")
    products.node("Mul", ["g", "s"], "a")
    products.node("Mul", ["a", "u"], "y")
    session = _session(products.model({"x": ("float16", ["s", 544])}, {"y": "float16"}), tmp_path)
    for rows in _ROWS:
        x = np.random.default_rng(rows).standard_normal((rows, 544)).astype(np.float16)
        g, u = np.split(x.astype(np.float64) @ products.weights["p"].T, 2, axis=-1)
        expected = g / (1 + np.exp(-g)) * u
        found = sessions.run(session, {"x": x})["y"].astype(np.float64)
        assert np.abs(found - expected).max() <= 1.5e-3 * np.abs(expected).max(), rows

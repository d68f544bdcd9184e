"""Products of e4m3 codes: by cuBLASLt, also by a stand-in, and widened where it refuses."""

from __future__ import annotations

import hashlib
import pathlib
import types
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen.nvrtc import compile_cuda
from onnxopt.kinds.gemm import widened
from onnxopt.program.gemm import FLOAT8, Gemm
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.emulation import emulated
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
H, F = "float16", "float32"
_TANH_GELU = np.sqrt(2 / np.pi)
_EXACT = {H: 1e-3, F: 2e-6}  # of the largest |value|
_FAST = 4e-3  # the same, where tensor cores add some products at a time with fewer bits than float32 has


def _gemm(dtype: str, count: int = 2, parts: int = 1, **fields: Any) -> Gemm:
    gemm = Gemm((FLOAT8, FLOAT8, *[dtype] * (count - 2)), (dtype,) * parts, transpose_b=True, **fields)
    gemm.verify()
    return gemm


def _arrays(gemm: Gemm, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(13)
    numbers = [rng.standard_normal(shape) for shape in shapes]
    codes = np.clip(numbers[0] * 60, -448, 448), np.clip(numbers[1] * 100, -448, 448)
    stored = [c.astype(ml_dtypes.float8_e4m3fn) for c in codes]
    return [*stored, *(x.astype(d) for x, d in zip(numbers[2:], gemm.inputs[2:], strict=True))]


def _expected(gemm: Gemm, arrays: list[np.ndarray]) -> np.ndarray:
    x = [a.astype(np.float64) for a in arrays]
    y = gemm.alpha * (x[0] @ x[1].swapaxes(-1, -2))
    y = y if gemm.bias is None else y + x[gemm.bias]
    y = y if gemm.residual is None else y + gemm.beta * x[gemm.residual]
    if gemm.activation == "relu":
        y = np.maximum(y, 0)
    if gemm.activation == "gelu_tanh":
        y = 0.5 * y * (1 + np.tanh(_TANH_GELU * (y + 0.044715 * y**3)))
    return np.asarray(y)


def _row(gemm: Gemm, name: str = artifact.NAME) -> dict[str, Any]:
    return {"name": name, "kind": "gemm", **gemm.to_json(), "cpu": False, "variants": []}


def _model(gemm: Gemm, shapes: list[tuple[int, ...]], name: str = artifact.NAME) -> onnx.ModelProto:
    inputs = [(d, list(s)) for d, s in zip(gemm.inputs, shapes, strict=True)]
    return artifact.model(artifact.wrong_body(*gemm.outputs), inputs, [(d, None) for d in gemm.outputs], name=name)


def _library(folder: pathlib.Path, gemm: Gemm, *, widens: bool) -> pathlib.Path:
    """A library with the kernel, and with code that widens codes for the GPU of this machine if asked for."""
    if not widens:
        return artifact.write(folder, [_row(gemm)])
    points = widened.entry_points(artifact.NAME)
    lines = widened.lines(types.SimpleNamespace(variants=points))  # type: ignore[arg-type]
    text = "\n".join([f'#include "{widened.HEADER}"', "namespace onnxopt {", *lines, "}", ""])
    fatbin = compile_cuda(text, [device_arch()])
    (folder / "kernels.fatbin").write_bytes(fatbin)
    described = {"file": "kernels.fatbin", "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    return artifact.write(folder, [_row(gemm) | {"variants": [v.to_json() for v in points]}], described)


def _check(gemm: Gemm, arrays: list[np.ndarray], outputs: dict[str, np.ndarray], tolerance: float) -> None:
    found = np.concatenate([outputs[f"y{k}"] for k in range(len(gemm.outputs))], axis=-1)
    wanted = _expected(gemm, arrays)
    assert (found.dtype.name, found.shape) == (gemm.outputs[0], wanted.shape)
    scale = np.abs(wanted).max(initial=1e-3)
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=tolerance * scale, rtol=0)


def _check_on_the_gpu(folder: pathlib.Path, gemm: Gemm, shapes: list[tuple[int, ...]], *, widens: bool) -> None:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(_library(folder, gemm, widens=widens)))
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    ready = ort.InferenceSession(_model(gemm, shapes).SerializeToString(), options, providers=providers)
    arrays = _arrays(gemm, shapes)
    for _ in range(2):
        _check(gemm, arrays, sessions.run(ready, {f"x{k}": a for k, a in enumerate(arrays)}), _FAST)


_ALL = {"alpha": 2e-5, "bias": 2, "residual": 3, "activation": "relu"}
# name: dtype of the output, fields, parts, shapes
_CASES: dict[str, tuple[str, dict[str, Any], int, list[tuple[int, ...]]]] = {
    "plain": (H, {"alpha": 2e-5}, 1, [(64, 128), (48, 128)]),
    "odd rows": (H, {"alpha": 2e-5}, 1, [(33, 128), (48, 128)]),
    "one row": (H, {"alpha": 2e-5}, 1, [(1, 128), (48, 128)]),
    "rows of a batch": (H, {"alpha": -2e-5}, 1, [(3, 7, 64), (32, 64)]),
    "batch": (H, {"alpha": 2e-5}, 1, [(6, 33, 64), (6, 32, 64)]),
    "batches that broadcast": (H, {"alpha": 2e-5}, 1, [(2, 1, 16, 64), (3, 32, 64)]),
    "bias": (H, {"alpha": 2e-5, "bias": 2}, 1, [(40, 64), (32, 64), (32,)]),
    "residual": (H, {"alpha": 2e-5, "residual": 2, "beta": -0.5}, 1, [(40, 64), (32, 64), (40, 32)]),
    "all": (H, _ALL, 1, [(40, 64), (32, 64), (32,), (40, 32)]),
    "gelu": (H, {"alpha": 2e-5, "bias": 2, "activation": "gelu_tanh"}, 1, [(40, 64), (32, 64), (32,)]),
    "parts": (H, {"alpha": 2e-5, "bias": 2}, 3, [(40, 64), (96, 64), (96,)]),
    "float32": (F, {"alpha": 2e-5}, 1, [(40, 64), (32, 64)]),
    "float32 residual": (F, {"alpha": 2e-5, "residual": 2}, 1, [(40, 64), (32, 64), (40, 32)]),
    "float32 gelu": (F, {"alpha": 2e-5, "activation": "gelu_tanh"}, 1, [(40, 64), (32, 64)]),
    "no rows": (H, {}, 1, [(0, 32), (16, 32)]),
}  # fmt: skip
# What cuBLASLt takes no 8-bit floats for.
_REFUSED: dict[str, tuple[str, dict[str, Any], int, list[tuple[int, ...]]]] = {
    "odd sides": (H, _ALL, 1, [(9, 33), (21, 33), (21,), (9, 21)]),
    "float32 bias": (F, {"alpha": 2e-5, "bias": 2}, 1, [(40, 64), (32, 64), (32,)]),
    "odd parts": (H, {"alpha": 2e-5}, 3, [(6, 35), (15, 35)]),
    "odd batch": (H, {"alpha": 2e-5}, 1, [(2, 3, 5, 7), (3, 9, 7)]),
    "a sum over nothing": (H, {"bias": 2}, 1, [(9, 0), (24, 0), (24,)]),
}  # fmt: skip
_EVERY = _CASES | _REFUSED


def test_products(tmp_path: pathlib.Path) -> None:
    """What cuBLASLt takes, by a stand-in that multiplies."""
    cases = [(_gemm(dtype, len(shapes), parts, **fields), shapes) for dtype, fields, parts, shapes in _CASES.values()]
    rows, jobs, drawn = [], [], [_arrays(gemm, shapes) for gemm, shapes in cases]
    for k, ((gemm, shapes), arrays) in enumerate(zip(cases, drawn, strict=True)):
        points = [v.to_json() for v in widened.entry_points(f"Fused_{k:08x}")]
        rows.append(_row(gemm, f"Fused_{k:08x}") | {"variants": points})
        jobs.append((_model(gemm, shapes, rows[-1]["name"]), [{f"x{n}": array for n, array in enumerate(arrays)}]))
    found = idle_gpu.run(tmp_path / "run", idle_gpu.document_of(*rows), jobs, multiplies=True)
    for (gemm, _), arrays, (outputs,) in zip(cases, drawn, found, strict=True):
        assert not isinstance(outputs, str), outputs
        _check(gemm, arrays, outputs, _EXACT[gemm.outputs[0]])


@pytest.mark.gpu
@pytest.mark.parametrize("name", _EVERY)
def test_products_on_the_gpu(tmp_path: pathlib.Path, name: str) -> None:
    dtype, fields, parts, shapes = _EVERY[name]
    gemm = _gemm(dtype, len(shapes), parts, **fields)
    _check_on_the_gpu(tmp_path, gemm, shapes, widens=name in _REFUSED or int(device_arch()[3:]) < 89)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(1024, 2304, 768), (1024, 768, 3072), (1001, 784, 528), (512, 2048, 5632)])
def test_large_products_on_the_gpu(tmp_path: pathlib.Path, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    shapes = [(m, k), (n, k), (n,), (m, n)]
    _check_on_the_gpu(tmp_path, _gemm(H, 4, bias=2, residual=3, alpha=3e-6), shapes, widens=True)


_MAIN = """
#include "gemm/widen_codes.cuh"
using namespace onnxopt;
int main() {
  for (const unsigned shift : {0u, 8u, 3u}) {
    for (const unsigned count : {1u, 8u, 250u, 2048u + 13u}) {
      std::vector<uint8_t> codes(count + shift);
      for (unsigned k = 0; k < count + shift; ++k) codes[k] = static_cast<uint8_t>(k * 37 + 5);
      alignas(16) static uint16_t numbers[4096];
      for (uint16_t& number : numbers) number = 0x1234;
      const WidenCodesParams params{codes.data() + shift, numbers, count};
      emulation::launch((count + 511) / 512, 64, [&] { widen_codes<64>(params); });
      for (unsigned k = 0; k < count; ++k) {
        const float wanted = widen(float8e4m3fn{codes[k + shift]}), found = widen(float16{numbers[k]});
        if (wanted == wanted ? found != wanted : found == found) return 2;
      }
      if (numbers[count] != 0x1234) return 3;
    }
  }
}
"""


def test_widened_codes(tmp_path: pathlib.Path) -> None:
    emulated.run(tmp_path, _MAIN)


def test_narrow_vectors_are_refused(tmp_path: pathlib.Path) -> None:
    point = widened.entry_points(artifact.NAME)[0].to_json() | {"vector": 4}
    described = idle_gpu.document_of(_row(_gemm(H, 3, bias=2)) | {"variants": [point]})
    idle_gpu.assert_refused(tmp_path, described, "variants[0].vector is not 8")

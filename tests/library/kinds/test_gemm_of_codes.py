"""The library's kernels for products of codes: float16 operands, float32 results, inputs that they do not read."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.program.gemm import Gemm
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
H, F = "float16", "float32"
_TANH_GELU = np.sqrt(2 / np.pi)


def _of_codes(count: int = 3, parts: int = 1, **fields: Any) -> Gemm:
    """The last input is 8-bit codes that the kernel does not read, those before a and b are float32."""
    inputs = (H, H, *[F] * (count - 3), "uint8")
    gemm = Gemm(inputs, (F,) * parts, unread=(count - 1,), **fields)
    gemm.verify()
    return gemm


def _arrays(gemm: Gemm, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Codes of int8 without their zero point, and numbers; what nothing reads is drawn too."""
    rng = np.random.default_rng(11)
    drawn = {
        H: lambda shape: rng.integers(-255, 256, shape).astype(np.float16),
        F: lambda shape: rng.standard_normal(shape).astype(np.float32) * 100,
        "uint8": lambda shape: rng.integers(0, 256, shape).astype(np.uint8),
    }
    return [drawn[dtype](shape) for dtype, shape in zip(gemm.inputs, shapes, strict=True)]


def _expected(gemm: Gemm, arrays: list[np.ndarray]) -> np.ndarray:
    x = [a.astype(np.float64) for a in arrays]
    a = x[gemm.a].swapaxes(-1, -2) if gemm.transpose_a else x[gemm.a]
    b = x[gemm.b].swapaxes(-1, -2) if gemm.transpose_b else x[gemm.b]
    y = gemm.alpha * (a @ b)
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
    return artifact.model(artifact.wrong_body(*gemm.outputs), inputs, [(F, None)] * len(gemm.outputs), name=name)


def _check(gemm: Gemm, arrays: list[np.ndarray], outputs: list[np.ndarray], tolerance: float) -> None:
    found, wanted = np.concatenate(outputs, axis=-1), _expected(gemm, arrays)
    assert (found.dtype, found.shape) == (np.float32, wanted.shape)
    scale = np.abs(wanted).max(initial=1.0)
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=tolerance * scale, rtol=0)


def _check_on_the_gpu(folder: pathlib.Path, gemm: Gemm, shapes: list[tuple[int, ...]], tolerance: float) -> None:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(artifact.write(folder, [_row(gemm)])))
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    ready = ort.InferenceSession(_model(gemm, shapes).SerializeToString(), options, providers=providers)
    arrays = _arrays(gemm, shapes)
    for _ in range(2):
        _check(gemm, arrays, artifact.run(ready, arrays), tolerance)


# name: fields, parts, shapes
_CASES: dict[str, tuple[dict[str, Any], int, list[tuple[int, ...]]]] = {
    "plain": ({"alpha": 0.0004}, 1, [(33, 64), (64, 40), (33, 64)]),
    "rows": ({"alpha": 0.0004, "transpose_b": True}, 1, [(2, 5, 64), (40, 64), (2, 5, 64)]),
    "one row": ({"alpha": 0.0004, "transpose_b": True}, 1, [(1, 64), (40, 64), (1, 64)]),
    "odd sizes": ({"alpha": -0.5}, 1, [(3, 7), (7, 5), (3, 7)]),
    "batch": ({"alpha": 0.01}, 1, [(2, 3, 6, 32), (2, 3, 32, 10), (2, 3, 6, 32)]),
    "batches that broadcast": ({"alpha": 0.01}, 1, [(2, 1, 6, 32), (3, 32, 10), (4,)]),
    "both turned": ({"transpose_a": True, "transpose_b": True}, 1, [(32, 6), (10, 32), (32, 6)]),
    "bias": ({"alpha": 0.01, "bias": 2}, 1, [(9, 32), (32, 24), (24,), (9, 32)]),
    "residual": ({"alpha": 0.01, "residual": 2, "beta": -0.5}, 1, [(9, 32), (32, 24), (9, 24), (9, 32)]),
    "all": ({"alpha": 0.01, "bias": 2, "residual": 3, "activation": "relu", "transpose_b": True}, 1,
            [(9, 32), (24, 32), (24,), (9, 24), (9, 32)]),
    "gelu": ({"alpha": 0.00001, "bias": 2, "activation": "gelu_tanh"}, 1, [(9, 32), (32, 24), (24,), (9, 32)]),
    "parts": ({"alpha": 0.01, "bias": 2, "transpose_b": True}, 3, [(9, 32), (24, 32), (24,), (9, 32)]),
    "a sum over nothing": ({"bias": 2}, 1, [(9, 0), (0, 24), (24,), (9, 0)]),
    "no rows": ({}, 1, [(0, 32), (32, 24), (0, 32)]),
}  # fmt: skip


# Sums of fewer than 2^24 are integers in float32.
_EXACT = [(9, 200), (200, 30), (9, 200)]


def test_products(tmp_path: pathlib.Path) -> None:
    """With a stand-in for cuBLASLt that multiplies. The last one is exact."""
    cases = [(_of_codes(len(shapes), parts, **fields), shapes) for fields, parts, shapes in _CASES.values()]
    cases.append((_of_codes(), _EXACT))
    rows, jobs, drawn = [], [], [_arrays(gemm, shapes) for gemm, shapes in cases]
    for k, ((gemm, shapes), arrays) in enumerate(zip(cases, drawn, strict=True)):
        rows.append(_row(gemm, f"Fused_{k:08x}"))
        feeds = {f"x{n}": array for n, array in enumerate(arrays)}
        jobs.append((_model(gemm, shapes, rows[-1]["name"]), [feeds]))
    found = idle_gpu.run(tmp_path / "run", idle_gpu.document_of(*rows), jobs, multiplies=True)
    for (gemm, shapes), arrays, (outputs,) in zip(cases, drawn, found, strict=True):
        assert not isinstance(outputs, str), outputs
        every = [outputs[f"y{k}"] for k in range(len(outputs))]
        _check(gemm, arrays, every, 0.0 if shapes is _EXACT else 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", _CASES)
def test_products_on_the_gpu(tmp_path: pathlib.Path, name: str) -> None:
    fields, parts, shapes = _CASES[name]
    _check_on_the_gpu(tmp_path, _of_codes(len(shapes), parts, **fields), shapes, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(1024, 2304, 768), (1024, 768, 3072), (1000, 776, 520)])
def test_large_products_on_the_gpu(tmp_path: pathlib.Path, sizes: tuple[int, int, int]) -> None:
    """Sums of thousands of products of up to 255 * 255 keep float32's precision, whatever algorithm runs."""
    m, n, k = sizes
    gemm = _of_codes(5, bias=2, residual=3, transpose_b=True, alpha=0.0003)
    _check_on_the_gpu(tmp_path, gemm, [(m, k), (n, k), (n,), (m, n), (m, k)], 5e-6)  # tensor cores truncate

"""Codes with a scale of each row, as ModelOpt and torchao spell them: one kernel, the norm's, stores both.

Abs, ReduceMax, Div, Clip and Cast behind a norm, in float8 and int8. The kernel's CUDA text runs on the CPU, and the
library's CPU kernel and ONNX Runtime's own nodes beside it, all against float64.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.emulation import emulated_library
from tests.support.graphs import graph

pytestmark = pytest.mark.usefixtures("library")

_COLUMNS = 96
_MIN = 0.05  # magnitude of a row
_TOP = {"float8": 448.0, "int8": 127.0}
_STEPS = {  # from the normalized row n and its largest magnitude e to the codes q
    "float8": "d = Div(n, s)  k = Clip(d, low, top)  q = Cast<to = 17>(k)",
    "float8 by the reciprocal": "i = Reciprocal(s)  d = Mul(n, i)  k = Clip(d, low, top)  q = Cast<to = 17>(k)",
    "int8": "d = Div(n, s)  o = Round(d)  k = Clip(o, low, top)  q = Cast<to = 3>(k)",
}
_NORMS = {
    "layer norm": "n = LayerNormalization(x, g)",
    "root mean square": "p = Mul(x, x)  m = ReduceMean<keepdims = 1>(p, last)  v = Add(m, small)  w = Sqrt(v)"
    "  u = Div(x, w)  n = Mul(u, g)",
}
_CASES = [
    (steps, norm, dtype)
    for steps, norm, dtype in (
        ("float8", "layer norm", "float16"),
        ("float8", "root mean square", "float"),
        ("float8 by the reciprocal", "root mean square", "float16"),
        ("int8", "layer norm", "float"),
        ("int8", "root mean square", "float16"),
    )
]


def _model(steps: str, norm: str, dtype: str) -> ir.Model:
    kind = steps.split()[0]
    numbers = {"least": _MIN, "small": 1e-5, "top": _TOP[kind], "low": -_TOP[kind]}
    made = graph(
        f"{dtype}[N, {_COLUMNS}] x, {dtype}[{_COLUMNS}] g",
        f"{'float8e4m3fn' if kind == 'float8' else 'int8'}[N, {_COLUMNS}] q, {dtype}[N, 1] s",
        f"{_NORMS[norm]}  b = Abs(n)  t = ReduceMax<keepdims = 1>(b, last)  e = Max(t, least)  s = Div(e, top)  "
        + _STEPS[steps],
        constants="int64[1] last = {-1}, " + ", ".join(f"{dtype} {name} = {{0}}" for name in numbers),
        opset=20,
    )
    for name, number in numbers.items():
        tensor = ir.tensor(np.asarray(number, np.float16 if dtype == "float16" else np.float32), name=name)
        made.graph.initializers[name].const_value = tensor
    return made


def _feeds(dtype: str) -> dict[str, np.ndarray]:
    """Rows of different sizes, one of zeros alone, and one with a single large element."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((37, _COLUMNS)) * rng.uniform(0.1, 20, (37, 1))
    x[5] = 0
    x[6, 1:] *= 1e-2
    storage = np.float16 if dtype == "float16" else np.float32
    return {"x": x.astype(storage), "g": rng.uniform(0.5, 1.5, _COLUMNS).astype(storage)}


def _check(case: tuple[str, str, str], feeds: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Scales to the rounding of their dtype, codes to the nearest of the exact quotient, or to the next at a middle."""
    steps, norm, dtype = case
    kind = steps.split()[0]
    x, g = (feeds[name].astype(np.float64) for name in ("x", "g"))
    centered = x - x.mean(1, keepdims=True) if norm == "layer norm" else x
    n = centered / np.sqrt(np.mean(np.square(centered), 1, keepdims=True) + 1e-5) * g
    scale = np.maximum(np.abs(n).max(1, keepdims=True), _MIN) / _TOP[kind]
    relative = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(found["s"].astype(np.float64), scale, rtol=relative)
    quotient = np.clip(n / scale, -_TOP[kind], _TOP[kind])
    codes = found["q"].astype(np.float64)
    half = 0.5 if kind == "int8" else np.maximum(np.abs(quotient) / 16, 2.0**-10)  # e4m3 has 3 bits behind the point
    assert (np.abs(codes - quotient) <= half + 2 * relative * np.abs(quotient) + 1e-9).all()
    assert np.abs(codes[np.arange(37) != 5]).max(1).min() >= _TOP[kind] * (1 - 1 / 16)
    assert not codes[5].any()


def _fused(case: tuple[str, str, str]) -> tuple[ir.Model, Kernel]:
    model = _model(*case)
    (kernel,) = outline(model, fuse(model))
    codes = "float8e4m3fn" if case[0].startswith("float8") else "int8"
    assert kernel.kind.name == "rowwise"
    assert set(kernel.program.outputs) == {codes, "float32" if case[2] == "float" else case[2]}
    return model, kernel


@pytest.mark.parametrize("case", _CASES, ids=" ".join)
def test_one_kernel_stores_codes_and_scales(case: tuple[str, str, str], tmp_path: Path) -> None:
    feeds = _feeds(case[2])
    ir.save(_model(*case), tmp_path / "original.onnx")
    _check(case, feeds, sessions.run(sessions.open_session(tmp_path / "original.onnx"), feeds))
    model, kernel = _fused(case)
    ir.save(model, tmp_path / "fused.onnx")
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json([dataclasses.replace(kernel, cpu=True)], None))
    for path in (None, library):
        _check(case, feeds, sessions.run(sessions.open_session(tmp_path / "fused.onnx", library=path), feeds))


def test_its_cuda_text_on_the_cpu(tmp_path: Path) -> None:
    case = _CASES[0]
    model, kernel = _fused(case)
    feeds = _feeds(case[2])
    (found,), launched = emulated_library.run(tmp_path / "run", ir.to_proto(model), [kernel], [feeds])
    assert launched
    _check(case, feeds, found)


def test_it_compiles_without_an_instruction_for_codes() -> None:
    assert nvrtc.compile_cuda(generate.generate([_fused(_CASES[2])[1]]), ["sm_75"])

"""Fused kernels in the buffer of an input that nothing reads afterwards: right, and one buffer less."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import Kernel
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.graphs import graph, run

pytestmark = pytest.mark.usefixtures("library")

# A CumSum whose axis is fed has no kernel of ours, so that its result is a buffer which the region may take;
# name: outputs, body
BODIES = {
    "read twice": ("float[{n}] y", "c = CumSum(x, axis)  s = Sigmoid(c)  m = Mul(c, s)  y = Add(m, c)"),
    "read after the first output is written": (
        "float[{n}] y, float[{n}] z",
        "c = CumSum(x, axis)  u = Add(c, two)  z = Mul(c, u)  y = CumSum(u, axis)",
    ),
    "beside a bias": ("float[{n}] y", "c = CumSum(x, axis)  b = ReduceSum(x, axes)  a = Add(c, b)  y = Mul(a, c)"),
    "two that lend": ("float[{n}] y", "c = CumSum(x, axis)  d = CumSum(c, axis)  e = Neg(c)  y = Mul(e, d)"),
}  # fmt: skip
_CONSTANTS = "int64[1] axes = {0}, int64[1] k = {1}, float two = {2}"
_MEASURE = """
import json, re, sys
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
x = np.ones(int(sys.argv[3]), np.float32)
def most():  # kilobytes; ru_maxrss would begin with the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = most()
session.run(None, {"x": x, "axis": np.zeros(1, np.int64)})
print(json.dumps(most() - before))
"""


def _optimized(outputs: str, body: str, size: int, folder: Path) -> tuple[ir.Model, onnx.ModelProto, Path, Kernel]:
    model = graph(f"float[{size}] x, int64[1] axis", outputs.format(n=size), body, constants=_CONSTANTS)
    optimized = model.clone()
    kernels = outline(optimized, fuse(optimized))
    rows = json.loads(kernels_json.to_json(kernels, None))["kernels"]
    library = artifact.write(folder / "artifact", [{**row, "cpu": True} for row in rows])
    return model, ir.to_proto(optimized), library, kernels[0]


@pytest.mark.parametrize("size", [1, 7, 5000, 300_001])
@pytest.mark.parametrize("name", BODIES)
def test_the_numbers_are_the_same(tmp_path: Path, name: str, size: int) -> None:
    model, optimized, library, _ = _optimized(*BODIES[name], size, tmp_path)
    x = np.random.default_rng(size).normal(0, 0.01, size).astype(np.float32)
    feeds = {"x": x, "axis": np.zeros(1, np.int64)}
    session = artifact.session(optimized, library, threads=2)
    for found, expected in zip(session.run(None, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _kilobytes(tmp_path: Path, body: str, size: int, outputs: str = "int64[1] y") -> int:
    """How much the process grew in a run."""
    _, optimized, library, _ = _optimized(outputs, body, size, tmp_path)
    path = tmp_path / "model.onnx"
    onnx.save(optimized, path)
    command = [sys.executable, "-c", _MEASURE, str(path), str(library), str(size)]
    return int(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_a_buffer_is_saved(tmp_path: Path) -> None:
    """c and m share a buffer of 64 MB, unless c is read later too."""
    size, buffer = 16 << 20, 64 << 10
    kernel = "c = CumSum(x, axis)  s = Neg(c)  m = Abs(s)"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = _kilobytes(tmp_path / "one", f"{kernel}  v, y = TopK(m, k)", size)
    two = _kilobytes(tmp_path / "two", f"{kernel}  v, p = TopK(m, k)  y = Gather(c, p)", size, "float[1] y")
    assert one < 1.5 * buffer < two

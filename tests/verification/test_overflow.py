"""Networks of 16 bits whose results overflow at large values: right kernels are kept, wrong ones left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxopt
from onnxopt.artifact.manifest import Manifest
from onnxopt.program.operators import table as operators
from onnxopt.verification.sampling import edges

TEXT = """
    <ir_version: 10, opset_import: ["" : 17]>
    network (float[batch, 8] x, float[8] bias, float[8, 8] weight) => (float[batch, 64] y) {
      mixed = MatMul(x, weight)
      biased = Add(mixed, bias)
      half = Cast<to = 10>(biased)
      wide = MatMul(half, widen)
      active = Relu(wide)
      product = MatMul(active, deep)
      result = Relu(product)
      y = Cast<to = 1>(result)
    }
"""


def _optimized(folder: Path, artifact: Path) -> Manifest:
    """Of a network whose float16 results ONNX Runtime keeps in float32 on the CPU, which no kernel of ours does."""
    model, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(0)
    for name, dims in {"widen": (8, 512), "deep": (512, 64)}.items():
        array = (rng.standard_normal(dims) * 0.05).astype(np.float16)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "m.onnx")
    return onnxopt.optimize(folder / "m.onnx", artifact, archs=()).manifest


@pytest.mark.usefixtures("library")
def test_right_kernels_are_kept(tmp_path: Path, artifact: Path) -> None:
    manifest = _optimized(tmp_path, artifact)
    assert manifest.left_out == () and manifest.verify.status == "passed"
    executed = {name for row in manifest.verify.executed or () for name in row.kernels}
    assert any("Cast" in kernel.operators and kernel.name in executed for kernel in manifest.kernels)
    (note,) = [note for note in manifest.verify.notes if "overflows 16 bits at" in note]
    assert edges.LESS_LARGE in note
    tried = {check.case for check in manifest.verify.checks}
    assert any(edges.LEAST_LARGE in case for case in tried)  # where nothing overflows, and all is compared


@pytest.mark.usefixtures("library")
def test_a_kernel_wrong_at_large_values_is_left_out(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sums above 50, which noise does not reach, what is above counts twice."""
    row = operators.OPERATORS["", "Add"]
    wrong = dataclasses.replace(row, meaning=lambda c: row.meaning(c) + (row.meaning(c) - 50.0).max(0.0))
    monkeypatch.setitem(operators.OPERATORS, ("", "Add"), wrong)  # type: ignore[index]
    manifest = _optimized(tmp_path, artifact)
    assert any("Add" in left.ops for left in manifest.left_out)

"""Kinds of kernels that raise an error are left out by name, and the others run the model."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import onnx.parser
import pytest

import onnxopt
from onnxopt.errors import StepError
from onnxopt.kinds import KINDS
from onnxopt.pipeline import fused

pytestmark = pytest.mark.usefixtures("library")
_TEXT = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[4, 64] x) => (float[4, 64] y) {
        n = Softmax <axis = -1> (x) r = Relu (x) s = Sigmoid (r) t = Mul (r, s) y = Add (n, t)
    }
"""


def _model(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model(_TEXT), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("step", ["find", "entry_points"])
def test_a_kind_that_raises_is_left_out(step: str, tmp_path: Path, artifact: Path) -> None:
    kinds = {kind.name: kind for kind in KINDS}
    plain = onnxopt.optimize(_model(tmp_path), tmp_path / "plain", archs=(), verify=False).manifest
    assert [kernel.kind for kernel in plain.kernels] == ["rowwise"]
    with mock.patch.object(type(kinds["rowwise"]), step, side_effect=KeyError("no such row")):
        made = onnxopt.optimize(_model(tmp_path), artifact, archs=())
    manifest = made.manifest
    assert [(row.name, row.reason) for row in manifest.left_out] == [
        ("kind:rowwise", "it failed: KeyError: 'no such row'")
    ]
    assert [kernel.kind for kernel in manifest.kernels] == ["pointwise"]
    assert manifest.verify.status == "passed"
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    wide = x.astype(np.float64)
    held = np.maximum(wide, 0)
    expected = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True) + held / (1 + np.exp(-held))
    (found,) = made.session(providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_error_of_no_kind_ends_the_step(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("no such function")

    monkeypatch.setattr(fused.outline, "functions", broken)
    with pytest.raises(StepError, match="the step 'outline' failed: KeyError: 'no such function'"):
        onnxopt.optimize(_model(tmp_path), artifact, archs=())
    assert not artifact.exists()

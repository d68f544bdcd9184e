"""Calls of depthwise convolutions: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cases.depthwise import Case, fused
from onnxopt.codegen import kernels_json
from tests.support.custom_ops.custom_ops_artifact import copy_library
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import custom_ops_fake_driver as fake_driver
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")


def _calls(folder: Path, case: Case, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, tuple[int, ...]] | str]:
    found = fused(case)
    return idle_gpu.calls(folder / "run", found.optimized, idle_gpu.document(found.kernels), feeds)


def test_a_model_of_any_shape(tmp_path: Path) -> None:
    """Images that are empty and have only padding, too."""
    first = Case((1, 8, 8, 5), (3, 3), (2, 2), pads=(2, 2, 2, 2), behind="silu", in_front="relu6", known=False)
    sizes = ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8), (1, 8, 300), (2, 0, 0), (1, 0, 4))
    cases = [dataclasses.replace(first, x=(*size, 5)) for size in sizes]
    found = _calls(tmp_path, first, [case.feeds() for case in cases])
    assert found == [{"y": tuple(case.result_dims())} for case in cases]


@pytest.mark.parametrize("case", [
    Case((1, 3, 3, 4), (5, 5), known=False), Case((1, 3, 3, 4), (5, 5), (3, 3), known=False),
    Case((1, 0, 4, 4), pads=(1, 1, 1, 1), known=False), Case((1, 3, 9, 4), (5, 5), auto_pad="VALID", known=False),
])  # fmt: skip
def test_a_kernel_larger_than_its_input_is_refused_as_by_onnx_runtime(case: Case, tmp_path: Path) -> None:
    plain = ort.InferenceSession(fused(case).original.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = case.feeds()
    with pytest.raises(Exception, match="Invalid input shape"):
        plain.run(None, feeds)
    (said,) = _calls(tmp_path, case, [feeds])
    assert "is larger than its padded image of" in said


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = Case((2, 6, 6, 8), pads=(1, 1, 1, 1), behind="residual", known=False)
    feeds = case.feeds()
    huge = feeds | {"t": np.zeros((0, 2**31, 8, 8), np.float32)}
    one, other = _calls(tmp_path, case, [{**feeds, "r": feeds["r"][:1]}, huge])
    assert "[1, 6, 6, 8] is not read by element beside [2, 6, 6, 8]" in one
    assert "x [0, 2147483648, 8, 8] has a dim of 2^31 or more" in other


_OUTPUT = """
import sys, numpy as np, onnxruntime as ort
from tests.support.wrong_bodies import with_wrong_bodies
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(float(session.run(None, {"t": np.ones((1, 8, 8, 8), np.float16)})[0].astype(np.float32).std()))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_registering_with_a_gpu(tmp_path: Path) -> None:
    """The entry points are read and found; a CPU session there runs the function."""
    found = fused(Case((1, 8, 8, 8), (5, 5), pads=(2, 2, 2, 2), dtype="float16", behind="silu"))
    fatbin = fake_driver.fatbin((90, False))
    assert [v.layout for v in found.kernels[0].variants][1:2] == ["banded"]
    library = copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json(found.kernels, fatbin))
    (tmp_path / "kernels.fatbin").write_bytes(fatbin)
    onnx.save(found.optimized, tmp_path / "model.onnx")
    driver = fake_driver.build()
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": "90"}
    command = [sys.executable, "-c", _OUTPUT, str(tmp_path / "model.onnx"), str(library)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.01 and not done.stderr


VARIANT = "kernels.0.variants.0"
DAMAGED_VARIANTS = {
    "unknown layout": ("layout", "tiled", 'is "tiled", not one of held, walking, banded'),
    "no rows": ("down", 0, "variants[0].down is not an integer from 1 to 32"),
    "images that do not divide": ("images", 3, "does not divide a product's rows"),
    "a narrow product": ("vector", 4, "which is for 16-bit floats in vectors of 8"),
    "threads of no whole warp": ("threads", 100, "is no multiple of a warp"),
    "shared memory below 0": ("shared", -1, "shared is not an integer from 0"),
}


@pytest.mark.parametrize("name", DAMAGED_VARIANTS)
def test_damaged_variant(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGED_VARIANTS[name]
    case = Case((2, 16, 16, 8), (5, 5), pads=(2, 2, 2, 2), dtype="float16")
    changed = idle_gpu.document(fused(case).kernels, set_field(f"{VARIANT}.{field}", value))
    idle_gpu.assert_refused(tmp_path, changed, message)

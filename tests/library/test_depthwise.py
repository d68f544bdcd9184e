"""Depthwise convolutions through the library on the CPU: meaning, shapes, padding and programs against float64."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.runtime import sessions
from tests.support import custom_ops_fake_driver as fake_driver
from tests.support.custom_ops_artifact import copy_library
from tests.support.custom_ops_damage import set_field
from tests.support.depthwise_models import Case, Fused, fused, random_case, worst
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")


def _session(found: Fused, folder: Path, change=None) -> ort.InferenceSession:
    """A session that runs the fused function with the CPU kernel. change: of kernels.json's document, in place."""
    library = copy_library(folder)
    kernels = [dataclasses.replace(k, cpu=True) for k in found.kernels]
    document = json.loads(kernels_json.to_json(kernels, None))
    if change is not None:
        change(document)
    (folder / "kernels.json").write_text(sealed_json.seal(document))
    onnx.save(with_wrong_bodies(found.optimized), folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", library=library)


def _agrees(case: Case, session: ort.InferenceSession) -> None:
    feeds = case.feeds()
    with np.errstate(all="ignore"):
        assert worst(case, sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1, case


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 54), marks=pytest.mark.exhaustive)], ids=str)
def test_random_convolutions(seeds: range, dtype: str, tmp_path: Path) -> None:
    for seed in seeds:
        case = random_case(seed, dtype)
        _agrees(case, _session(fused(case), tmp_path / str(seed)))


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = Case((1, 8, 8, 5), (3, 3), (2, 2), pads=(1, 1, 1, 1), behind="silu", in_front="relu6", known=False)
    session = _session(fused(first), tmp_path)
    for x in ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8), (1, 8, 300)):
        case = dataclasses.replace(first, x=(*x, 5))
        assert list(sessions.run(session, case.feeds())["y"].shape) == case.result_dims()
        if x[0]:
            _agrees(case, session)


@pytest.mark.parametrize(("x", "pads"), [((2, 0, 0, 3), (2, 2, 2, 2)), ((1, 0, 4, 3), (2, 1, 1, 1))], ids=str)
def test_an_empty_image_has_only_padding(
    x: tuple[int, int, int, int], pads: tuple[int, int, int, int], tmp_path
) -> None:
    for in_front in ("", "relu6"):
        case = Case(x, pads=pads, in_front=in_front, behind="silu", known=False)
        _agrees(case, _session(fused(case), tmp_path / f"of_{in_front}"))


@pytest.mark.parametrize("case", [
    Case((1, 3, 3, 4), (5, 5), known=False), Case((1, 3, 3, 4), (5, 5), (3, 3), known=False),
    Case((1, 0, 4, 4), pads=(1, 1, 1, 1), known=False), Case((1, 3, 9, 4), (5, 5), auto_pad="VALID", known=False),
])  # fmt: skip
def test_a_kernel_larger_than_its_input_is_refused_as_by_onnx_runtime(case: Case, tmp_path: Path) -> None:
    plain = ort.InferenceSession(fused(case).original.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = case.feeds()
    with pytest.raises(Exception, match="Invalid input shape"):
        plain.run(None, feeds)
    session = _session(fused(case), tmp_path)
    with pytest.raises(Exception, match=r"the kernel is larger than its padded input \["):
        sessions.run(session, feeds)


def test_a_dim_of_2_to_the_31_is_refused(tmp_path: Path) -> None:
    session = _session(fused(Case((1, 8, 8, 4), pads=(1, 1, 1, 1), known=False)), tmp_path)
    with pytest.raises(Exception, match=r"x \[0, 2147483648, 8, 4\] has a dim of 2\^31 or more"):
        sessions.run(session, {"t": np.zeros((0, 2**31, 8, 4), np.float32)})


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = Case((2, 6, 6, 8), pads=(1, 1, 1, 1), behind="residual", known=False)
    session = _session(fused(case), tmp_path)
    feeds = case.feeds()
    with pytest.raises(Exception, match="does not fit the result's shape"):
        sessions.run(session, {**feeds, "r": feeds["r"][:1]})


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
    driver = fake_driver.build(tmp_path / "driver", shutil.which("cc") or "")
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": "90"}
    command = [sys.executable, "-c", _OUTPUT, str(tmp_path / "model.onnx"), str(library)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.01 and not done.stderr


PART = "kernels.0.after"
DAMAGE = {
    "one input": ("kernels.0.inputs", ["float32"], "are not 2 to 16"),
    "integers": ("kernels.0.inputs.0", "int32", "are not floats of 16 or 32 bits"),
    "two outputs": ("kernels.0.outputs", ["float32"] * 2, "are not one float"),
    "no channels": ("kernels.0.channels", 0, "kernels[0].channels is not an integer from 1"),
    "x far away": ("kernels.0.x", 9, "kernels[0].x is not an integer from 0 to"),
    "another dtype": ("kernels.0.inputs.1", "float16", "has another dtype than x"),
    "no window": ("kernels.0.window", ..., 'has no field "window"'),
    "a kernel of 0": ("kernels.0.window.kernel", [0, 3], "window.kernel[0] is not an integer from 1"),
    "three strides": ("kernels.0.window.strides", [1, 1, 1], "window.strides has 3 numbers, not 2"),
    "a huge kernel": ("kernels.0.window.kernel", [300, 3], "a kernel, stride or dilation above 255"),
    "pads beside auto_pad": ("kernels.0.window.auto_pad", "VALID", "are not zeros beside auto_pad"),
    "unknown auto_pad": ("kernels.0.window.auto_pad", "SAME", "not NOTSET, VALID, SAME_UPPER or SAME_LOWER"),
    "unknown form": (f"{PART}.reads.0.form", "row", "not element, channel or scalar"),
    "a read far away": (f"{PART}.reads.0.input", 99, "reads[0].input is not an integer from 0"),
    "a read too few": (f"{PART}.reads", [], "does not compute one result of its dtype"),
    "an instruction that is none": (f"{PART}.program.code.0.op", "frob", "which is no primitive"),
    "an element in front": ("kernels.0.before.reads.0.form", "element", "reads another tensor by element"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    case = Case((2, 6, 6, 8), pads=(1, 1, 1, 1), in_front="scale", behind="residual")
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        _session(fused(case), tmp_path, set_field(field, value))
    assert "kernels.json" in str(caught.value)


VARIANT = "kernels.0.variants.0"
DAMAGED_VARIANTS = {
    "unknown layout": ("layout", "tiled", 'is "tiled", which is no layout'),
    "no rows": ("down", 0, "variants[0].down is not an integer from 1 to 16"),
    "images that do not divide": ("images", 3, "does not divide a product's rows"),
    "a narrow product": ("vector", 4, "which is for 16-bit floats in vectors of 8"),
    "threads of no whole warp": ("threads", 100, "is no multiple of a warp"),
    "shared memory below 0": ("shared", -1, "shared is not an integer from 0"),
}


@pytest.mark.parametrize("name", DAMAGED_VARIANTS)
def test_damaged_variant(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGED_VARIANTS[name]
    case = Case((2, 16, 16, 8), (5, 5), pads=(2, 2, 2, 2), dtype="float16")
    with pytest.raises(Exception, match=re.escape(message)):
        _session(fused(case), tmp_path, set_field(f"{VARIANT}.{field}", value))

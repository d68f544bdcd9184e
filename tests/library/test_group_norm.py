"""Group norms through the library on the CPU: meaning, shapes and programs against float64; damaged descriptions."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.runtime import sessions
from tests.support.custom_ops_artifact import copy_library
from tests.support.custom_ops_damage import set_field
from tests.support.group_norm_models import Case, Fused, fused, random_case, worst
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
    found = sessions.run(session, feeds)["y"]
    assert worst(case, found, case.expected(feeds)) <= 1, case


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_random_norms(dtype: str, tmp_path: Path) -> None:
    for seed in range(25):
        case = random_case(seed, dtype)
        _agrees(case, _session(fused(case), tmp_path / str(seed)))


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = Case((1, 8, 8, 12), 4, "float16", "spelled_open", "time", "affine_silu", known=False)
    session = _session(fused(first), tmp_path)
    for x in ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8), (1, 0, 8)):
        case = dataclasses.replace(first, x=(*x, 12))
        assert sessions.run(session, case.feeds())["y"].shape == case.x
        if all(x):
            _agrees(case, session)


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = Case((2, 6, 6, 8), 4, form="group", in_front="time", behind="residual", known=False)
    session = _session(fused(case), tmp_path)
    feeds = case.feeds()
    for name in ("r", "e"):
        with pytest.raises(Exception, match="does not fit x of shape"):
            sessions.run(session, {**feeds, name: np.concatenate([feeds[name]] * 2)})


def test_more_pixels_than_a_launch_can_count_are_refused(tmp_path: Path) -> None:
    session = _session(fused(Case((1, 8, 8, 4), 4, form="group", known=False)), tmp_path)
    with pytest.raises(Exception, match=r"2\^31 pixels or more"):
        sessions.run(session, {"t": np.zeros((0, 2**16, 2**16, 4), np.float32)})


ELEMENT = {"input": 0, "form": "element"}
DAMAGE = {
    "integers": ("kernels.0.inputs.0", "int32", "are not floats of 16 or 32 bits"),
    "two outputs": ("kernels.0.outputs", ["float32"] * 2, "are not one float"),
    "no channels": ("kernels.0.channels", 0, "kernels[0].channels is not an integer from 1"),
    "groups that do not divide": ("kernels.0.groups", 3, "do not divide the channels"),
    "a huge group": ("kernels.0.channels", 8192, "have more than 1024 channels"),
    "x far away": ("kernels.0.x", 9, "kernels[0].x is not an integer from 0 to"),
    "epsilon as text": ("kernels.0.epsilon", "1", "epsilon is not a number"),
    "epsilon below 0": ("kernels.0.epsilon", -1.0, "epsilon is below 0"),
    "unknown form": ("kernels.0.after.reads.0.form", "row", "not element, channel, sample, group or scalar"),
    "a part of a row behind its end": ("kernels.0.before.reads.0.first", 32, "first leaves less than all channels"),
    "a part of no whole vectors": ("kernels.0.before.reads.0.first", 4, "row does not keep vectors aligned"),
    "a read far away": ("kernels.0.after.reads.0.input", 99, "reads[0].input is not an integer from 0"),
    "a read too few": ("kernels.0.after.reads", [], "does not compute one result of its dtype"),
    "an element in front": ("kernels.0.before.reads.0", ELEMENT, "reads another tensor by element"),
    "unknown layout": ("kernels.0.variants.0.layout", "tiled", 'is "tiled", which is no layout'),
    "half a group": ("kernels.0.variants.0.columns", 1, "are not those of whole groups"),
    "nothing held": ("kernels.0.variants.0.held", 0, "held is not an integer from 1"),
    "threads of no whole warp": ("kernels.0.variants.0.threads", 100, "is no multiple of a warp"),
    "a launch too few": ("kernels.0.variants.7.launch", 0, "whose launches are not all there"),
    "a launch that is none": ("kernels.0.variants.0.launch", 1, "launch is not an integer from 0 to 0"),
    "a cluster that loops": ("kernels.0.variants.8.cluster", 2, "is for blocks that hold their elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    case = Case((2, 6, 6, 32), 4, form="group", in_front="time", behind="residual", known=False, part=8)
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        _session(fused(case), tmp_path, set_field(field, value))
    assert "kernels.json" in str(caught.value)

"""Artifacts of small models load and agree on older releases of ONNX Runtime, with the library and without it.

All models on all releases: `python -m tests.compat`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnxopt
from models.reference import Reference
from onnxopt.runtime import releases
from tests.compat import RELEASES, CannotInstall, install, run
from tests.support import real_models

_BETWEEN = ("1.26.0",)  # the others run every time
MODELS = ("bert_tiny_dyn", "efficientnet_tiny_fp16", "silero_vad_16k_op15", "magika_v3_3")


@pytest.fixture(scope="module", params=MODELS)
def optimized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, library: Path):
    """(artifact, reference) of one model; skips where the model cannot be had on this machine."""
    path = real_models.path(request.param)
    artifact = tmp_path_factory.mktemp("compat") / request.param
    onnxopt.optimize(path, artifact, archs=(), verify=False)
    return artifact, Reference.of(request.param)


@pytest.mark.compat
@pytest.mark.models
@pytest.mark.parametrize(
    "release", [pytest.param(r, marks=pytest.mark.exhaustive if r in _BETWEEN else ()) for r in RELEASES]
)
def test_artifact_agrees(release: str, optimized: tuple[Path, Reference]) -> None:
    try:
        outcomes = run(release, *optimized)
    except CannotInstall as error:
        pytest.skip(str(error))
    assert [o.library for o in outcomes] == [False, True]
    assert all(o.ok for o in outcomes), "\n".join(map(str, outcomes))


# Opens an Identity of every IR version and opset, and prints the pairs that are read.
_READS = """
import json, onnxruntime as ort
from onnx import TensorProto, helper
ort.set_default_logger_severity(4)
read = []
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
for ir_version in range(9, 17):
    for opset in range(20, 32):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
        try:
            ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception:
            continue
        read.append((ir_version, opset))
print(json.dumps([max(pair[k] for pair in read) for k in (0, 1)]))
"""


@pytest.mark.compat
@pytest.mark.parametrize("release", RELEASES)
def test_what_a_release_reads(release: str) -> None:
    try:
        paths = [str(install(release)), *(path for path in sys.path if path)]
    except CannotInstall as error:
        pytest.skip(str(error))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    printed = subprocess.run(
        [sys.executable, "-c", _READS], env=environment, capture_output=True, text=True, check=True
    )
    assert tuple(json.loads(printed.stdout)) == releases.reads(release)


def test_releases_that_were_not_tried_are_not_guessed() -> None:
    assert releases.reads("1.33.0") is None and releases.reads("2.0") is None
    assert releases.reads("1.32.4") == releases.reads("1.32.0") and releases.reads("1.30") == releases.reads("1.25")

"""Artifacts of small models load and agree on older releases of ONNX Runtime, with the library and without it.

All models on all releases: `python -m tests.compat`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxopt
from models.reference import Reference
from tests.compat import RELEASES, CannotInstall, run
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

"""Image convolutions on the GPU: random ones, infinities, and one session over many shapes, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from cases.depthwise import worst
from cases.image_convolution import IN_FRONT, Case, fused, random_case
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COUNT = 30  # random convolutions of each dtype


def _prepared(folder: Path, cases: list[Case]) -> tuple[Path, list[Path]]:
    """The library beside the compiled kernels of all cases, and the path of every case's model."""
    kernels: dict[str, Kernel] = {}
    models = []
    for number, case in enumerate(cases):
        found = fused(case)
        kernels |= {kernel.name: kernel for kernel in found.kernels}
        models.append(folder / f"model{number}.onnx")
        onnx.save(with_wrong_bodies(found.optimized), models[-1])
    chosen = list(kernels.values())
    fatbin = nvrtc.compile_cuda(generate.generate(chosen), [device_arch()])
    return write_library(folder / "lib", kernels_json.to_json(chosen, fatbin), fatbin), models


def _worst(case: Case, model: Path, library: Path, feeds: dict[str, np.ndarray]) -> float:
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    return worst(case, sessions.run(session, feeds)["y"], case.expected(feeds))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_convolutions(dtype: str, tmp_path: Path) -> None:
    cases = [random_case(seed, dtype) for seed in range(_COUNT)]
    cases += [dataclasses.replace(case, dtype=dtype) for case in IN_FRONT]
    library, models = _prepared(tmp_path, cases)
    with np.errstate(all="ignore"):
        errors = [_worst(case, model, library, case.feeds()) for case, model in zip(cases, models, strict=True)]
    assert not [(case, error) for case, error in zip(cases, errors, strict=True) if not error <= 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_infinities_spoil_no_neighbours(dtype: str, tmp_path: Path) -> None:
    case = Case((2, 3, 34, 70), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="relu", appended=1, dtype=dtype)
    library, (model,) = _prepared(tmp_path, [case])
    feeds = case.feeds()
    feeds["t"][0, 1, 7, 5] = np.inf
    feeds["t"][0, 2, 33, 69] = -np.inf
    feeds["t"][1, 0, 0, 32] = np.nan
    with np.errstate(all="ignore"):
        assert _worst(case, model, library, feeds) <= 1


@pytest.mark.parametrize("tf32", [True, False])
def test_random_convolutions_of_float32(tf32: bool, tmp_path: Path) -> None:
    cases = [random_case(seed, "float32") for seed in range(_COUNT)]
    library, models = _prepared(tmp_path, cases)
    options = {"use_tf32": str(int(tf32))}
    for case, model in zip(cases, models, strict=True):
        feeds = case.feeds()
        session = sessions.open_session(model, provider=sessions.CUDA, library=library, provider_options=options)
        error = worst(case, sessions.run(session, feeds)["y"], case.expected(feeds))  # type: ignore[arg-type]
        assert error <= (1000 if tf32 else 1), case


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = Case((1, 3, 64, 64), 64, (7, 7), (2, 2), (3, 3, 3, 3), behind="silu", appended=1, known=False)
    library, (model,) = _prepared(tmp_path, [first])
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    for x in ((1, 3, 64, 64), (3, 3, 1, 1), (2, 3, 130, 75), (4, 3, 9, 500)):
        case = dataclasses.replace(first, x=x)
        feeds = case.feeds()
        assert worst(case, sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1  # type: ignore[arg-type]

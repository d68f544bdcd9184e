"""Group norms on the GPU against float64: random ones, every launch shape of clusters, one session over many shapes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from cases.group_norm import Case, fused, random_case, worst
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COUNT = 24  # random norms of each dtype


def _library(folder: Path, kernels: list[Kernel]) -> Path:
    """The library beside the compiled kernels."""
    fatbin = nvrtc.compile_cuda(generate.generate(kernels), [device_arch()])
    return write_library(folder, kernels_json.to_json(kernels, fatbin), fatbin)


def _wrong(cases: list[Case], folder: Path) -> list[tuple[Case, float]]:
    """Cases whose results are not near those in float64, and by how many times the limit."""
    kernels: dict[str, Kernel] = {}
    for number, case in enumerate(cases):
        found = fused(case)
        kernels |= {kernel.name: kernel for kernel in found.kernels}
        onnx.save(with_wrong_bodies(found.optimized), folder / f"model{number}.onnx")
    library = _library(folder / "lib", list(kernels.values()))
    wrong = []
    for number, case in enumerate(cases):
        session = sessions.open_session(folder / f"model{number}.onnx", provider=sessions.CUDA, library=library)
        feeds = case.feeds()
        error = worst(case, sessions.run(session, feeds)["y"], case.expected(feeds))
        if not error <= 1:
            wrong.append((case, error))
    return wrong


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_random_norms(dtype: str, tmp_path: Path) -> None:
    cases = list({random_case(seed, dtype): None for seed in range(_COUNT)})
    assert not _wrong(cases, tmp_path)


def test_diffusion_networks(tmp_path: Path) -> None:
    """Sizes that take one block, clusters of two to eight, 512 threads, and two launches."""
    sizes = ((4, 8, 8, 640), (4, 16, 16, 320), (4, 16, 16, 480), (4, 32, 32, 160), (2, 64, 64, 320), (1, 256, 256, 128))
    cases = [Case(x, 32, "float16", "spelled", "time", "affine_silu", ones=True) for x in sizes]
    assert not _wrong(cases, tmp_path)


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = Case((1, 8, 8, 96), 32, "float16", "spelled_open", "time", "affine_silu", known=False, mean=2.0)
    found = fused(first)
    onnx.save(with_wrong_bodies(found.optimized), tmp_path / "model.onnx")
    library = _library(tmp_path / "lib", list(found.kernels))
    session = sessions.open_session(tmp_path / "model.onnx", provider=sessions.CUDA, library=library)
    for x in ((1, 8, 8), (4, 32, 32), (3, 1, 1), (2, 130, 55), (0, 8, 8), (16, 16, 16), (1, 300, 300)):
        case = dataclasses.replace(first, x=(*x, 96))
        feeds = case.feeds()
        y = sessions.run(session, feeds)["y"]
        assert y.shape == case.x
        if x[0]:
            assert worst(case, y, case.expected(feeds)) <= 1, x


def test_not_a_number_spoils_its_group_alone(tmp_path: Path) -> None:
    case = Case((2, 32, 32, 160), 32, "float16", "group", behind="affine_silu")
    found = fused(case)
    onnx.save(with_wrong_bodies(found.optimized), tmp_path / "model.onnx")
    library = _library(tmp_path / "lib", list(found.kernels))
    feeds = case.feeds()
    feeds["t"][1, 31, 30, 77] = np.nan
    session = sessions.open_session(tmp_path / "model.onnx", provider=sessions.CUDA, library=library)
    with np.errstate(all="ignore"):
        assert worst(case, sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1

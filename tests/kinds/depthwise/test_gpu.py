"""Depthwise convolutions on the GPU: random ones, infinities, and one session over many shapes, against float64."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from cases.depthwise import Case, fused, random_case, worst
from cases.expanded_depthwise import ExpandedCase, random_expanded
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COUNT = 40  # random convolutions of each dtype
_GROUPS = 8  # compiled side by side
_DTYPES = ("float16", "bfloat16", "float32")


def _compile(folder: Path, kernels: dict[str, Kernel]) -> Path:
    """The library beside the compiled kernels."""
    chosen = list(kernels.values())
    fatbin = nvrtc.compile_cuda(generate.generate(chosen), [device_arch()])
    return write_library(folder, kernels_json.to_json(chosen, fatbin), fatbin)


def _prepared(folder: Path, groups: list[list[Case]]) -> list[tuple[Path, list[tuple[Case, Path]]]]:
    """For every group its library, and the path of every case's model."""
    made = []
    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        for k, cases in enumerate(groups):
            kernels: dict[str, Kernel] = {}
            models = []
            for number, case in enumerate(cases):
                found = fused(case)
                kernels |= {kernel.name: kernel for kernel in found.kernels}
                models.append((case, folder / f"model{k}_{number}.onnx"))
                onnx.save(with_wrong_bodies(found.optimized), models[-1][1])
            made.append((pool.submit(_compile, folder / f"lib{k}", kernels), models))
        return [(job.result(), models) for job, models in made]


def _run(model: Path, library: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    return sessions.run(session, feeds)["y"]


def _wrong(cases: list[Case], folder: Path) -> list[tuple[Case, float]]:
    """The cases that are further than the limit from float64, with their errors."""
    wrong = []
    for library, models in _prepared(folder, [cases[k::_GROUPS] for k in range(_GROUPS)]):
        for case, model in models:
            feeds = case.feeds()
            error = worst(case, _run(model, library, feeds), case.expected(feeds))
            if not error <= 1:
                wrong.append((case, error))
    return wrong


@pytest.mark.parametrize("dtype", _DTYPES)
def test_random_convolutions(dtype: str, tmp_path: Path) -> None:
    cases = [random_case(seed, dtype) for seed in range(_COUNT)]
    assert not _wrong(cases, tmp_path)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_infinities_spoil_no_neighbours(dtype: str, tmp_path: Path) -> None:
    wide = Case((2, 19, 40, 16), (5, 5), pads=(2, 2, 2, 2), dtype=dtype, behind="relu")
    cases = [wide, dataclasses.replace(wide, in_front="bias_silu"), dataclasses.replace(wide, behind="residual")]
    ((library, models),) = _prepared(tmp_path, [cases])
    for case, model in models:
        feeds = case.feeds()
        feeds["t"][0, 3, 7, 5] = np.inf
        feeds["t"][1, 18, 39, 0] = -np.inf
        feeds["t"][1, 0, 17, 9] = np.nan
        with np.errstate(all="ignore"):
            assert worst(case, _run(model, library, feeds), case.expected(feeds)) <= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_expanded_convolutions(dtype: str, tmp_path: Path) -> None:
    """Behind a 1x1 convolution, whose result only this kernel sees."""
    cases: list[Case] = [random_expanded(seed, dtype) for seed in range(_COUNT)]
    cases.append(ExpandedCase((2, 113, 111, 16), strides=(2, 2), pads=(1, 1, 1, 1), dtype=dtype, wide=96))
    assert not _wrong(cases, tmp_path)


def test_one_session_takes_many_expanded_shapes(tmp_path: Path) -> None:
    first = ExpandedCase((2, 9, 12, 24), (5, 5), (2, 2), pads=(2, 2, 2, 2), wide=72, behind="silu", known=False)
    ((library, models),) = _prepared(tmp_path, [[first]])
    session = sessions.open_session(models[0][1], provider=sessions.CUDA, library=library)
    for _ in range(2):
        for x in ((1, 1, 1), (2, 9, 12), (3, 40, 7), (1, 3, 100), (0, 4, 4)):
            case = dataclasses.replace(first, x=(*x, 24))
            feeds = case.feeds()
            found = sessions.run(session, feeds)["y"]
            assert list(found.shape) == case.result_dims()
            assert not x[0] or worst(case, found, case.expected(feeds)) <= 1


def test_one_session_takes_many_shapes(tmp_path: Path) -> None:
    first = Case((2, 9, 12, 24), (3, 5), pads=(1, 2, 1, 2), dtype="float16", behind="silu", known=False)
    ((library, models),) = _prepared(tmp_path, [[first]])
    session = sessions.open_session(models[0][1], provider=sessions.CUDA, library=library)
    for _ in range(2):
        for x in ((1, 1, 1), (2, 9, 12), (5, 100, 7), (1, 3, 200), (0, 4, 4), (70_000, 2, 2)):
            case = dataclasses.replace(first, x=(*x, 24))
            feeds = case.feeds()
            found = sessions.run(session, feeds)["y"]
            assert list(found.shape) == case.result_dims()
            few = {k: v[:3] for k, v in feeds.items()}  # the reference evaluator takes its time
            small = dataclasses.replace(case, x=(min(3, x[0]), *x[1:], 24))
            if x[0]:
                assert worst(small, found[:3], small.expected(few)) <= 1
                assert np.array_equal(found[-1], sessions.run(session, {k: v[-1:] for k, v in feeds.items()})["y"][0])

"""Attention of many queries on the GPU: random ones, and one session over many shapes, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.depthwise_models import bodiless
from tests.support.extended_attention import random_extended
from tests.support.flash_attention_models import Case, fused, random_case

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COUNT = 40  # random attentions of each dtype


def _prepared(folder: Path, cases: list[Case]) -> tuple[Path, list[Path]]:
    """The library beside the compiled kernels of all cases, and the path of every case's model."""
    kernels: dict[str, Kernel] = {}
    models = []
    for number, case in enumerate(cases):
        found = fused(case)
        for kernel in found.kernels:  # cases of one meaning have entry points of their own
            known = kernels.get(kernel.name, kernel).variants
            merged = {v.symbol: v for v in (*known, *kernel.variants)}
            kernels[kernel.name] = dataclasses.replace(kernel, variants=tuple(merged.values()))
        models.append(folder / f"model{number}.onnx")
        onnx.save(bodiless(found.optimized), models[-1])
    chosen = list(kernels.values())
    fatbin = nvrtc.compile_cuda(generate.generate(chosen), [device_arch()])
    return write_library(folder / "lib", kernels_json.to_json(chosen, fatbin), fatbin), models


def _worst(case: Case, model: Path, library: Path) -> float:
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    feeds = case.feeds()
    return case.worst(sessions.run(session, feeds)["y"], case.expected(feeds))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_attentions(dtype: str, tmp_path: Path) -> None:
    cases = [random_case(seed, dtype) for seed in range(_COUNT)]
    library, models = _prepared(tmp_path, cases)
    errors = [_worst(case, model, library) for case, model in zip(cases, models, strict=True)]
    assert not [(case, error) for case, error in zip(cases, errors, strict=True) if not error <= 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_windows_caps_sinks_and_groups(dtype: str, tmp_path: Path) -> None:
    cases = [random_extended(seed, dtype) for seed in range(_COUNT // 2)]
    library, models = _prepared(tmp_path, cases)
    errors = [_worst(case, model, library) for case, model in zip(cases, models, strict=True)]
    assert not [(case, error) for case, error in zip(cases, errors, strict=True) if not error <= 1]


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = Case(2, 20, 50, 3, 32, bias=(True, True), known=False)
    library, (model,) = _prepared(tmp_path, [first])
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    for batch, queries in ((1, 1), (300, 70), (2, 50), (5, 1000)):
        case = dataclasses.replace(first, batch=batch, queries=queries)
        feeds = case.feeds()
        assert case.worst(sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1


def test_hidden_rows_and_infinite_keys_stay_where_they_are(tmp_path: Path) -> None:
    case = Case(2, 40, 70, 2, 24, bias=(True, False))
    library, (model,) = _prepared(tmp_path, [case])
    feeds = case.feeds()
    feeds["bias"][0, 0, 3] = -np.inf
    feeds["k"][1, 5, 7] = np.nan
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    with np.errstate(all="ignore"):
        assert case.worst(sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1

"""Mixtures of experts on the GPU: every dtype, few tokens and many in one session, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
import pytest

from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.depthwise_models import bodiless
from tests.support.experts_models import Case, fused

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_TOKENS = (1, 3, 16, 17, 128, 700)


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 8, 2, 256, 520, "float16"), Case(1, 60, 4, 264, 96, "bfloat16", wide=False),
        Case(1, 5, 3, 100, 68, "float32"), Case(1, 128, 8, 128, 64, "float16", "gelu"),
        Case(1, 16, 1, 64, 200, "float16", "squared", plain=True),
        Case(1, 32, 4, 2880, 96, "bfloat16", "clamped", wide=False, biased=True, interleaved=True),
    ],
    ids=str,
)  # fmt: skip
def test_one_session_takes_any_number_of_tokens(case: Case, tmp_path: Path) -> None:
    found = fused(case)
    fatbin = nvrtc.compile_cuda(generate.generate(found.kernels), [device_arch()])
    library = write_library(tmp_path / "lib", kernels_json.to_json(found.kernels, fatbin), fatbin)
    onnx.save(bodiless(found.optimized), tmp_path / "model.onnx")
    session = sessions.open_session(tmp_path / "model.onnx", provider=sessions.CUDA, library=library)
    for tokens in _TOKENS:
        of = dataclasses.replace(case, tokens=tokens)
        for crowded in (False, True):
            feeds = of.feeds()
            if crowded:
                feeds["scores"][:, : case.chosen] += 100  # all tokens choose the same experts
            error = of.worst(sessions.run(session, feeds)["y"], of.expected(feeds))
            assert error <= 1, (of, crowded, error)

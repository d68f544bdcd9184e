"""Mixtures of experts on the GPU whose products cuBLASLt computes, few tokens and many, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cases.experts import GPU_CASES, GPU_TOKENS, Case, fused, multiplied_by_cublaslt
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]


@pytest.mark.parametrize("case", GPU_CASES, ids=str)
def test_one_session_takes_any_number_of_tokens(case: Case, tmp_path: Path) -> None:
    """cuBLASLt's results are rounded to the storage dtype before the activation too, as the graph's are."""
    session = _session(case, 0, tmp_path)
    for of in GPU_TOKENS:
        at = dataclasses.replace(case, tokens=of)
        for feeds in (at.feeds(), dataclasses.replace(at, crowded=True).feeds()):
            error = at.worst(sessions.run(session, feeds)["y"], at.expected(feeds))
            assert error <= 2, (at, error)  # float64 rounded so: 1.42


def test_a_capture_behind_products_of_cublaslt(tmp_path: Path) -> None:
    """The runs ahead of a capture wait for the GPU; the captured one, which is replayed for other choices, does not."""
    case = Case(300, 8, 2, 256, 520, "float16", known=True)
    session = _session(case, 0, tmp_path, {"enable_cuda_graph": "1"})
    binding, feeds = session.io_binding(), case.feeds()
    values = {name: ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in feeds.items()}
    y = ort.OrtValue.ortvalue_from_shape_and_type([case.tokens, case.columns], np.float16, "cuda", 0)
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", y)
    for seed in range(4):
        feeds = case.feeds(seed)
        for name, value in values.items():
            value.update_inplace(feeds[name])
        session.run_with_iobinding(binding)
        assert case.worst(y.numpy(), case.expected(feeds)) <= 1, seed


def _session(case: Case, least_rows: int, folder: Path, options: dict[str, str] | None = None) -> ort.InferenceSession:
    found = fused(case)
    kernels = [multiplied_by_cublaslt(kernel, least_rows) for kernel in found.kernels]
    fatbin = nvrtc.compile_cuda(generate.generate(kernels), [device_arch()])
    library = write_library(folder / "lib", kernels_json.to_json(kernels, fatbin), fatbin)
    onnx.save(with_wrong_bodies(found.optimized), folder / "model.onnx")
    return sessions.open_session(
        folder / "model.onnx", provider=sessions.CUDA, library=library, provider_options=options
    )

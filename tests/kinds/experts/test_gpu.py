"""Mixtures of experts on the GPU: every dtype, few tokens and many in one session, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cases.experts import Case, fused, multiplied_by_cublaslt
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_TOKENS = (1, 3, 16, 17, 128, 700)


@pytest.mark.parametrize("way", ["ours", "cuBLASLt"])
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
def test_one_session_takes_any_number_of_tokens(case: Case, way: str, tmp_path: Path) -> None:
    """cuBLASLt's results are rounded to the storage dtype in front of the activation too, as the graph's are."""
    session = _session(case, 0 if way == "cuBLASLt" else 2**31 - 1, tmp_path)
    for tokens in _TOKENS:
        of = dataclasses.replace(case, tokens=tokens)
        for crowded in (False, True):
            feeds = of.feeds()
            if crowded:
                feeds["scores"][:, : case.chosen] += 100  # all tokens choose the same experts
            error = of.worst(sessions.run(session, feeds)["y"], of.expected(feeds))
            assert error <= (2 if way == "cuBLASLt" else 1), (of, crowded, error)  # float64 rounded so: 1.42


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

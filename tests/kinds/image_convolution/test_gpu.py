"""Image convolutions on the GPU whose float32 products may be rounded; cases/ has what is exact."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from cases.depthwise import worst
from cases.image_convolution import fused, random_case
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies


@pytest.mark.gpu
def test_float32_with_tf32(tmp_path: Path, library: Path) -> None:
    cases = [random_case(seed, "float32") for seed in range(10)]
    found = [fused(case) for case in cases]
    kernels = list({kernel.name: kernel for of in found for kernel in of.kernels}.values())
    fatbin = nvrtc.compile_cuda(generate.generate(kernels), [device_arch()])
    beside = write_library(tmp_path / "lib", kernels_json.to_json(kernels, fatbin), fatbin)
    for case, of in zip(cases, found, strict=True):
        onnx.save(with_wrong_bodies(of.optimized), tmp_path / "model.onnx")
        session = sessions.open_session(tmp_path / "model.onnx", provider=sessions.CUDA, library=beside)
        feeds = case.feeds()
        assert worst(case, sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1000, case  # type: ignore[arg-type]

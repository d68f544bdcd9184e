"""Squeeze-excites on the GPU against float64: layouts of the convolution, many rows and tiles, CUDA graphs, reruns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cases.squeeze_excite import Case, fused, worst
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

CASES = (
    Case((1, 1, 1, 37), 7),
    Case((1, 1, 1, 48), 12, "float16", in_front=True),
    Case((1, 1, 1, 40), 10, "bfloat16", 5, 2, activation="relu", gate="hardsigmoid"),
    Case((1, 1, 1, 1152), 48, "float16", 5),
    Case((1, 1, 1, 24), 6, "float16", 7, activation="hardswish", gate="spelled", bias=False),
)
SIZES = ((2, 9, 11), (1, 1, 1), (3, 56, 57), (200, 7, 7), (1, 150, 151), (2, 9, 11))


def _session(case: Case, folder: Path) -> ort.InferenceSession:
    found = fused(case)
    fatbin = nvrtc.compile_cuda(generate.generate(found.kernels), [device_arch()])
    library = write_library(folder / "lib", kernels_json.to_json(found.kernels, fatbin), fatbin)
    onnx.save(with_wrong_bodies(found.optimized), folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", provider=sessions.CUDA, library=library)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_session_takes_many_shapes(case: Case, tmp_path: Path) -> None:
    session = _session(dataclasses.replace(case, known=False), tmp_path)
    for size in SIZES:
        at = dataclasses.replace(case, x=(*size, case.channels))
        feeds = at.feeds()
        found = sessions.run(session, feeds)
        few = {"t": feeds["t"][:2]}  # the reference evaluator takes its time
        small = dataclasses.replace(at, x=(min(2, size[0]), *size[1:], case.channels))
        assert worst(small, {k: v[:2] for k, v in found.items()}, small.expected(few)) <= 1, size
        again = sessions.run(session, feeds)
        assert all(np.array_equal(found[k], again[k]) for k in found), size  # no order of additions is left to chance


def test_a_cuda_graph_replays(tmp_path: Path) -> None:
    case = Case((4, 30, 31, 48), 12, "float16")
    found = fused(case)
    fatbin = nvrtc.compile_cuda(generate.generate(found.kernels), [device_arch()])
    library = write_library(tmp_path / "lib", kernels_json.to_json(found.kernels, fatbin), fatbin)
    onnx.save(with_wrong_bodies(found.optimized), tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    providers = [("CUDAExecutionProvider", {"enable_cuda_graph": "1"}), "CPUExecutionProvider"]
    session = ort.InferenceSession(tmp_path / "model.onnx", options, providers=providers)
    binding = session.io_binding()
    x = ort.OrtValue.ortvalue_from_numpy(case.feeds()["t"], "cuda", 0)
    shapes = {"v": case.result_dims(), "f": (4, 1, 1, 48)}
    outputs = {k: ort.OrtValue.ortvalue_from_shape_and_type(list(v), np.float16, "cuda", 0) for k, v in shapes.items()}
    binding.bind_ortvalue_input("t", x)
    for name, value in outputs.items():
        binding.bind_ortvalue_output(name, value)
    for seed in (0, 1, 2, 3):
        feeds = case.feeds(seed)
        x.update_inplace(feeds["t"])
        session.run_with_iobinding(binding)
        assert worst(case, {k: v.numpy() for k, v in outputs.items()}, case.expected(feeds)) <= 1, seed

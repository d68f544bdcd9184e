"""A page with everything on it, for the tests that look at it in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from tests.support.browsers import browser as browser
from tests.support.report_pages import bench_file, bench_result
from tests.support.small_models import CHAIN, write


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an artifact with kernels, refusals of the real model, a roofline and measurements."""
    folder = tmp_path_factory.mktemp("browser")
    model = write(folder / "chain.onnx", CHAIN.replace("batch", "64"))
    artifact = onnxopt.optimize(model, folder / "artifact", archs=("sm_90",)).path
    name = manifests.load(artifact).kernels[0].name
    result = bench_result(device="NVIDIA H200", kernels={name: {"microseconds": 2.0, "calls": 1}})
    swept = [bench_result(case=f"batch={size}, seed 0", requests=size) for size in (1, 2, 4, 96, 100, 1_000_000)]
    callers = [bench_result(case="batch=4, seed 0", requests=4, threads=number) for number in (2, 8)]
    return onnxopt.report(artifact, bench=[bench_file(folder / "b.json", result, *swept, *callers)])

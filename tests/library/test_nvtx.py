"""Ranges of NVTX have the names of fused functions, where they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnxopt
from tests.support.fusing import cpu_kernels_forced
from tests.support.small_models import CHAIN, write

_NVTX = """
#include <cstdio>
extern "C" int nvtxRangePushA(const char* name) { return std::printf("push %s\\n", name); }
extern "C" int nvtxRangePop() { return std::printf("pop\\n"); }
"""
_RUN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1] + "/lib/libonnxopt_ops.so")
session = ort.InferenceSession(sys.argv[1] + "/model.onnx", options, providers=["CPUExecutionProvider"])
feeds = {"x": np.ones((3, 8), np.float32), "bias": np.ones(8, np.float32), "weight": np.ones((8, 8), np.float32)}
session.run(None, feeds)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, library: Path) -> onnxopt.Artifact:
    folder = tmp_path_factory.mktemp("nvtx")
    with cpu_kernels_forced():
        return onnxopt.optimize(write(folder / "m.onnx", CHAIN), folder / "a", archs=(), verify=False)


def _ran(made: onnxopt.Artifact, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _RUN, str(made.path)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def _built(folder: Path, text: str) -> str:
    """The folder, with a library that has the name of NVTX's."""
    (folder / "nvtx.cc").write_text(text)
    command = ["g++", "-shared", "-fPIC", "-o", folder / "libnvtx3interop.so.1", folder / "nvtx.cc"]
    subprocess.run(command, check=True)
    return str(folder)


def test_a_range_around_each_run_of_a_fused_function(made: onnxopt.Artifact, tmp_path: Path) -> None:
    folder = _built(tmp_path, _NVTX)
    ran = _ran(made, ONNXOPT_NVTX="1", LD_LIBRARY_PATH=folder)
    assert ran.returncode == 0, ran.stderr
    names = [kernel.name for kernel in made.manifest.kernels]
    assert names and ran.stdout.splitlines() == [line for name in names for line in (f"push {name}", "pop")]
    assert _ran(made, LD_LIBRARY_PATH=folder).stdout == ""


def test_without_nvtx_registering_fails(made: onnxopt.Artifact, tmp_path: Path) -> None:
    ran = _ran(made, ONNXOPT_NVTX="1", LD_LIBRARY_PATH=_built(tmp_path, "int nothing;"))
    assert ran.returncode != 0
    assert "ONNXOPT_NVTX=1 asks for ranges of NVTX, and libnvtx3interop.so.1 cannot be loaded: install" in ran.stderr

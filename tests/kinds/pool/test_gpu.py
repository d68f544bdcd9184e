"""Random pools on the GPU against ONNX Runtime's CPU kernels.

`python -m tests.kinds.pool.test_gpu DIR sm_90` builds the artifact for a machine that has a GPU but no NVRTC. There,
ONNXOPT_PREPARED=DIR makes the test take it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, outline
from onnxopt import paths
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import kernels_json
from onnxopt.codegen.generate import generate
from onnxopt.codegen.nvrtc import compile_cuda
from onnxopt.program.pool import Pool
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.kinds import pool_models, random_pools


def build(chosen: Sequence[Pool], folder: Path, archs: Sequence[str]) -> None:
    """The fused model of these pools and its library."""
    made = random_pools.model(chosen)
    kernels = outline(made, fuse(made))
    assert sum(k.kind.name == "pool" for k in kernels) == len(chosen)
    ir.save(made, folder / "model.onnx")
    fatbin = compile_cuda(generate(kernels), archs)
    write_library(folder / "lib", kernels_json.to_json(kernels, fatbin), fatbin)


def _session(name: str, tmp_path: Path) -> ort.InferenceSession:
    folder = Path(os.environ.get("ONNXOPT_PREPARED", "")) / name
    if not (folder / "model.onnx").exists():
        build(_SETS[name](), tmp_path, [device_arch()])
    else:  # without the library, which lies here too
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        shutil.copy(paths.library(), tmp_path / "lib")
    library = tmp_path / "lib" / paths.library().name
    return sessions.open_session(tmp_path / "model.onnx", library=library, provider=sessions.CUDA)


def _special() -> list[Pool]:
    return [pool_models.of("max", d, (3, 3), pads=(1, 1, 1, 1)) for d in ("float32", "float16", "bfloat16")]


_SETS = {"pools": random_pools.pools, "special": _special}


@pytest.mark.gpu
def test_random_pools(tmp_path: Path, library: Path) -> None:
    session = _session("pools", tmp_path)
    wrong = random_pools.disagreeing(session)
    assert not wrong, (len(wrong), wrong[:3])


@pytest.mark.gpu
def test_not_a_number_and_infinities(tmp_path: Path, library: Path) -> None:
    """As of ONNX Runtime's CUDA kernel."""
    x = np.full((1, 9, 9, 8), -np.inf, np.float32)
    x[0, 2, 2], x[0, 6, 6] = np.nan, 1.0
    given = {f"x{k}": x.astype(np.float16) if p.dtype == "float16" else x for k, p in enumerate(_special())}
    expected = x.copy()
    expected[0, 5:8, 5:8], expected[0, 1:4, 1:4] = 1.0, np.nan
    for y in sessions.run(_session("special", tmp_path), given).values():
        np.testing.assert_array_equal(y.astype(np.float32), expected)


if __name__ == "__main__":
    for name, chosen in _SETS.items():
        target = Path(sys.argv[1]) / name
        target.mkdir(parents=True)
        build(chosen(), target, sys.argv[2:])
        (target / "lib" / paths.library().name).unlink()

"""What the library adds to opening a session: at most 100 ms of the processor, also the first time in a process."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import onnxruntime as ort
import pytest

import onnxopt
from onnxopt.runtime import sessions
from tests.support.small_models import write

MAX = 0.1  # seconds
ATTEMPTS = 3
FUNCTIONS = ("Tanh", "Sigmoid", "Exp", "Erf", "Softplus", "HardSwish")


@pytest.mark.usefixtures("library")
def test_opening_costs_at_most_100_ms_more(tmp_path: Path) -> None:
    """Of a model with a kernel for each function. A copy of the artifact is another library to the loader."""
    steps = " ".join(
        f"a{k} = {op}(x{k}) b{k} = Mul(a{k}, x{k}) x{k + 1} = MatMul(b{k}, w)" for k, op in enumerate(FUNCTIONS)
    )
    text = f"g (float[n, 16] x0, float[16, 16] w) => (float[n, 16] x{len(FUNCTIONS)}) {{ {steps} }}"
    made = onnxopt.optimize(write(tmp_path / "m.onnx", text), tmp_path / "a", archs=("sm_90",), verify=False)
    assert len(made.manifest.kernels) >= len(FUNCTIONS)
    added = []
    for k in range(ATTEMPTS):
        copy = shutil.copytree(made.path, tmp_path / f"copy{k}")
        with_library, without = (_seconds(copy, library) for library in (True, False))
        added.append(with_library - without)
    assert min(added) < MAX


def _seconds(artifact: Path, library: bool) -> float:
    """Seconds of the processor that a session takes to open, by all threads of this process."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    started = time.process_time()
    if library:
        options.register_custom_ops_library(str(artifact / "lib" / "libonnxopt_ops.so"))
    ort.InferenceSession(artifact / "model.onnx", options, providers=[sessions.CPU])
    return time.process_time() - started

"""Faults while running: failing calls of the CUDA driver, no memory, forks, threads that end, hundreds of sessions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxopt.codegen import sealed_json
from tests.fuzz.library import build, corpus
from tests.support.custom_ops.custom_ops_artifact import negation
from tests.support.fakes import custom_ops_fake_driver as fake_driver

pytestmark = pytest.mark.usefixtures("library")


# the CUDA driver, stood in for


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Path:
    return build.build(sanitized=request.config.getoption("--sanitizers"))


_FAULTS = [(model, "") for model in corpus.KINDS]
_FAULTS += [(model, "tunes") for model in {kind: model for model, kind in corpus.KINDS.items()}.values()]
_MEASURED = ("gemm", "codes", "float8", "grouped", "parts")  # whose sizes no file beside them has
_FAULTS += [(model, "first runs measure") for model in _MEASURED]
_FAULTS.append(("float8", "constants"))  # of which the kernel keeps a form of its own


@pytest.mark.parametrize(("model", "mode"), _FAULTS)
def test_every_failing_call_is_an_error_that_names_the_cause(
    model: str, mode: str, programs: Path, tmp_path: Path
) -> None:
    """Each call of the driver that loading, making and running the kernels takes fails once. So does each allocation of
    device memory. Leaks end the process. What nobody asked for, a measurement or the loading of a kernel,
    may fail in silence."""
    for name, content in corpus.files(model).items():
        (tmp_path / name).write_bytes(content)
    shutil.copy(programs / "faults", tmp_path)
    variables = build.environment()
    variables["ASAN_OPTIONS"] = variables["ASAN_OPTIONS"].replace("detect_leaks=0", "detect_leaks=1")
    if mode == "first runs measure":
        variables |= {"STATES_SHAPES": "1", "ONNXOPT_CACHE_SIZE": "0"}
    else:
        variables |= {"ONNXOPT_MEASURE": "0"}  # a product is measured at its first size, stated or not
    if any(b'"about"' in content for content in corpus.files(model).values()):
        variables |= {"LOADS_SIZES": "1"}
    if mode == "constants":
        variables |= {"CONSTANT_INPUTS": "1"}
    if mode == "tunes":
        variables |= {f"ONNXOPT_{kind}_TUNE": str(tmp_path / f"{kind}.json") for kind in ("LAUNCH", "GEMM", "CONV")}
    command = [tmp_path / "faults", tmp_path, programs]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("cublasLtCreate", "cuBLASLt does not start on this GPU: CUBLAS_STATUS_OF_THE_TEST"),
        ("cublasLtMatmulDescCreate", "cannot describe a product: CUBLAS_STATUS_OF_THE_TEST"),
        ("cublasLtMatmulAlgoGetHeuristic", "cuBLASLt has no algorithm for float32 m10 n12 k8"),
        ("cublasLtMatmul", "the product did not start"),
    ],
)
def test_failing_products(function: str, said: str, programs: Path, tmp_path: Path) -> None:
    original = corpus.files("gemm")
    for name, content in {k: v for k, v in original.items() if k != "gemm_algos.json"}.items():
        (tmp_path / name).write_bytes(content)
    shutil.copy(programs / "faults", tmp_path)
    command = [tmp_path / "faults", tmp_path, programs]
    own = {"FAKE_CUBLASLT_FAILS": function, "XDG_CACHE_HOME": str(tmp_path / "caches")}
    variables = build.environment() | own
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stderr) == (1, "")
    assert f'fails without a fault: "onnxopt: MatMulAddAdd_ced5fa89: {said}' in done.stdout


_WHICH_RAN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print("kernel" if session.run(None, {"x0": np.ones(3, np.float32)})[0][0] == -1 else "function")
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("function", "ran", "warning"),
    [
        ("cuInit", "kernel", ""),  # no GPU that works: as a machine without one
        ("cuDeviceGetCount", "kernel", ""),
        ("cuLibraryLoadData", "function", "cannot load kernels.fatbin: CUDA_ERROR_FAKE: as the test asked"),
        ("cuDeviceGetAttribute", "function", "cannot ask for a GPU's arch: CUDA_ERROR_FAKE: as the test asked"),
        ("cuDeviceGet", "function", "cannot open GPU 0: CUDA_ERROR_FAKE: as the test asked"),
    ],
)
def test_registering_where_the_driver_fails(function: str, ran: str, warning: str, tmp_path: Path) -> None:
    """A GPU that does not answer is no reason for a model not to run: one warning, and the functions' bodies."""
    library, model = negation(tmp_path)
    fatbin = fake_driver.fatbin((90, False))
    document = sealed_json.unseal((tmp_path / "kernels.json").read_text())
    document["fatbin"] |= {"sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    (tmp_path / "kernels.json").write_text(sealed_json.seal(document))
    (tmp_path / "kernels.fatbin").write_bytes(fatbin)
    (tmp_path / "model.onnx").write_bytes(model)
    driver = fake_driver.build()
    variables = {"LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": "90", "FAKE_FAILS": function}
    command = [sys.executable, "-c", _WHICH_RAN, str(tmp_path / "model.onnx"), str(library)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ran
    assert warning in done.stderr and done.stderr.count("warning") == (1 if warning else 0)


# processes, threads and sessions

_SESSION = """
import gc, os, re, sys, threading
import numpy as np, onnxruntime as ort
model, library = open(sys.argv[1], "rb").read(), sys.argv[2]

def session(threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(library)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

x = np.arange(100_000, dtype=np.float32)
def right(of):
    return bool((of.run(None, {"x0": x})[0] == -x).all())
def resident():  # kilobytes
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""

_FORK = """
first = session()
assert right(first)
for _ in range(3):
    child = os.fork()
    if child == 0:
        good = right(first) and right(session()) and right(session(2))
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert right(first)
print("right")
"""

_THREADS = """
shared, found = session(2), []
def work():
    own = session()
    found.append(right(shared) and right(own))
def rounds(count):
    for _ in range(count):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    gc.collect()
    return resident()
before = rounds(10)
grown = rounds(40) - before
assert all(found) and len(found) == 400
assert grown < 10_000, grown
print("right")
"""

_SESSIONS = """
def rounds(count):
    for k in range(count):
        assert right(session(1 + k % 2))
    gc.collect()
    return resident()
before = rounds(60)
grown = rounds(240) - before
assert grown < 10_000, grown
print("right")
"""


@pytest.mark.parametrize("program", [_FORK, _THREADS, _SESSIONS], ids=["fork", "threads", "sessions"])
def test_processes_threads_and_sessions(program: str, tmp_path: Path) -> None:
    """A child of a fork runs what its parent loaded; threads that end and sessions that are closed leave nothing."""
    library, model = negation(tmp_path)
    (tmp_path / "model.onnx").write_bytes(model)
    command = [sys.executable, "-c", _SESSION + program, str(tmp_path / "model.onnx"), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.returncode) == ("right", 0), done.stderr[-2000:]

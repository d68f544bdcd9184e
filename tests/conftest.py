"""What all tests share: the marks that need a device, and the fixtures that name what was built."""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import os
import shutil
import tempfile
from pathlib import Path

import onnx
import onnx.helper
import onnxruntime as ort
import pytest

from onnxopt.runtime import footprint
from onnxopt.runtime.sessions import RunError
from tests.support import builds, idle_threads

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "onnxopt" / "lib" / "libonnxopt_ops.so"
# Files that take 10 seconds of a core or more, the longest first: one that begins last runs beside idle workers.
LONGEST = (
    "kinds/test_cases.py", "graph/rewrite/test_models.py", "graph/test_quantizers.py", "library/test_faults.py",
    "tools/test_decoders.py", "tools/test_interrupts.py", "graph/shapes/test_symbolic_shapes.py",
    "fuzz/test_library_files.py", "kinds/gemm/test_packed_library.py", "project/test_examples.py",
    "tools/precision/test_precision.py", "verification/test_emulation.py", "library/test_loading.py",
    "project/test_readme.py", "kinds/rowwise/test_emulated.py", "tools/test_time_limit.py", "graph/test_normalize.py",
    "graph/precision/test_precision_classes.py", "tools/test_model_source.py", "tools/test_folders.py",
    "kinds/pointwise/test_quantize.py", "verification/test_small_outputs.py", "graph/test_large_model.py",
    "graph/rewrite/test_families.py", "tools/test_batch.py", "project/test_models.py",
    "kinds/attention/test_masked_emulated.py", "tools/test_cli.py", "project/test_benchmarks.py",
    "library/test_pointwise.py", "artifact/export/test_triton.py", "kinds/pointwise/test_emulated.py",
    "graph/rewrite/test_pipeline.py", "tools/test_bench.py", "graph/test_ort_fusions.py", "project/test_wheel.py",
    "project/test_onnxruntime_package.py", "project/test_tutorial.py",
)  # fmt: skip

ort.set_default_logger_severity(3)  # warnings about the models under test are not about the tests
idle_threads.stop_spinning()


@functools.cache
def why_no_gpu() -> str | None:
    """None where ORT's CUDA execution provider runs a model on a device here; else what is missing."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return "this build of ONNX Runtime has no CUDA execution provider"
    if not _has_device():
        return "no CUDA device"
    identity = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])],
        "probe",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
    )
    model = onnx.helper.make_model(identity, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    ort.preload_dlls()
    session = ort.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in session.get_providers():
        return "ONNX Runtime could not load its CUDA execution provider"
    return None


def _has_device() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def device_arch() -> str:
    """The architecture of the first CUDA device, as codegen/architectures.py spells it."""
    driver = ctypes.CDLL("libcuda.so.1")
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    assert driver.cuInit(0) == 0 and driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0) == 0
    assert driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0) == 0
    return f"sm_{major.value}{minor.value}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sanitizers", action="store_true", help="files beside the library are read by a library under sanitizers"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "exhaustive" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests and (reason := why_no_gpu()):
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))
    if hasattr(config, "workerinput"):
        places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
        counts = collections.Counter(item.path for item in items)
        items.sort(key=lambda item: (places.get(item.path, len(places)), -counts[item.path], item.path))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: looking for garbage in it, and so often, takes a tenth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts first makes a folder for what all processes of the run compile, and removes it."""
    if builds.FOLDER_VARIABLE not in os.environ:
        folder = tempfile.mkdtemp(prefix="onnxopt-builds-")
        os.environ[builds.FOLDER_VARIABLE] = folder
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.fixture(scope="session")
def library() -> Path:
    """The custom-op library of the source tree. A missing one fails the test: skipping would hide most of the suite."""
    if not LIBRARY.is_file():
        pytest.fail(f"{LIBRARY.relative_to(ROOT)} is not built; run: make build", pytrace=False)
    return LIBRARY


@pytest.fixture
def without_footprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """bench starts no processes of its own, which take seconds, and says so; for tests of what else it does."""

    def refuse(*_: object, **__: object) -> None:
        raise RunError("switched off")

    monkeypatch.setattr(footprint, "measure", refuse)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Where a test may write an artifact; does not exist yet."""
    return tmp_path / "artifact"

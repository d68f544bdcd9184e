"""ONNX Runtime, CUDA's libraries and cuDNN."""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.helper

from onnxopt import onnxruntime_package
from onnxopt.runtime import devices
from onnxopt.runtime.releases import parts
from onnxopt.runtime.sessions import CPU, CUDA, cuda_is_usable, one_line
from onnxopt.tools.doctor.finding import Finding


def onnxruntime() -> Iterator[Finding]:
    """The release, its providers, and whether several builds lie over each other."""
    import onnxruntime as ort

    built = f", built for CUDA {ort.cuda_version}" if getattr(ort, "cuda_version", "") else ""
    providers = ", ".join(p.removesuffix("ExecutionProvider") for p in ort.get_available_providers())
    yield Finding("onnxruntime", "ok", f"ONNX Runtime {ort.__version__}{built}; providers: {providers}")
    if doubled := onnxruntime_package.doubled():
        yield Finding("onnxruntime", "problem", *doubled)
    if CUDA not in ort.get_available_providers() and devices.first() is not None:
        yield Finding(
            "onnxruntime",
            "problem",
            "there is a GPU, and this ONNX Runtime has no CUDA execution provider",
            "pip uninstall onnxruntime, then pip install onnxruntime-gpu",
        )


def driver_for_runtime() -> Iterator[Finding]:
    """Whether the driver serves the CUDA that ONNX Runtime was built for."""
    import onnxruntime as ort

    built = getattr(ort, "cuda_version", "")
    try:
        served = devices.cuda_version()
    except devices.DriverError:
        return
    if not built or served is None:
        return
    if parts(served)[:1] < parts(built)[:1]:
        yield Finding(
            "cuda",
            "problem",
            f"ONNX Runtime is built for CUDA {built}, the driver serves up to {served}",
            f"update the driver, or install an ONNX Runtime built for CUDA {parts(served)[0]}",
        )
    else:
        yield Finding("cuda", "ok", f"the driver serves CUDA {built}, which ONNX Runtime is built for")


def cuda_provider() -> Iterator[Finding]:
    """Whether the CUDA execution provider starts: its libraries are found, and one node runs."""
    import onnxruntime as ort

    if not cuda_is_usable():
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):  # preload_dlls prints what it does not find
        ort.preload_dlls()
    missing = [line.split(":")[0] for line in printed.getvalue().splitlines() if line.startswith("Failed")]
    fix = (
        "install CUDA's and cuDNN's libraries (pip install onnxruntime-gpu[cuda,cudnn]), or put them on LD_LIBRARY_PATH"
    )
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(_one_node(), options, providers=[CUDA, CPU], enable_fallback=0)
        if CUDA not in session.get_providers():
            raise RuntimeError("; ".join(missing) or "its libraries do not load")
        session.run(None, {"x": np.zeros(1, np.float32)})
    except Exception as error:  # noqa: BLE001 - ORT raises a dozen unrelated classes; the finding has the message
        yield Finding("cuda", "problem", f"the CUDA execution provider does not start: {one_line(error)}", fix)
        return
    yield Finding("cuda", "ok", "the CUDA execution provider starts")


def cudnn() -> Iterator[Finding]:
    """The release of cuDNN that is loaded."""
    if not cuda_is_usable():
        return
    try:
        number = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion()
    except (OSError, AttributeError):
        yield Finding(
            "cudnn", "problem", "libcudnn.so.9 is not found", "pip install onnxruntime-gpu[cudnn], or install cuDNN 9"
        )
        return
    yield Finding("cudnn", "ok", f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}")


def _one_node() -> bytes:
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "doctor", value[:1], value[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())

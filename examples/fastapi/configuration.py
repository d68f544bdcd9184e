"""Which file of an artifact's providers/ this machine takes, and its options for ONNX Runtime.

The file that `onnxopt tune` wrote for this GPU, by the name that the driver gives to it; else cuda.json, which
rules made for any GPU; cpu.json where there is no GPU.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import onnxruntime as ort

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def choose(artifact: Path, name: str = "") -> tuple[str, dict[str, Any]]:
    """The name of a file of providers/ without ".json", and what it holds. name: take this one.

    ValueError where it cannot be used.
    """
    folder = artifact / "providers"
    if name:
        return name, _read(folder / f"{name}.json")
    device = gpu_name() if CUDA in ort.get_available_providers() else None
    if device is None:
        return "cpu", _read(folder / "cpu.json")
    for path in sorted(folder.glob("*.json")):
        data = _read(path)
        if data["provider"] == CUDA and data.get("tuned", {}).get("device") == device:
            return path.stem, data
    return "cuda", _read(folder / "cuda.json")


def gpu_name() -> str | None:
    """The first device as the driver calls it; None where there is none. No CUDA context is created."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(name, 256, device):
        return None
    return name.value.decode(errors="replace")


def session(artifact: Path, data: dict[str, Any]) -> ort.InferenceSession:
    """A session of the artifact with its library and the options of one file."""
    options = ort.SessionOptions()
    for name, value in data["session_options"].items():
        if name == "graph_optimization_level":
            value = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{value.upper()}")
        elif name == "execution_mode":
            value = getattr(ort.ExecutionMode, f"ORT_{value.upper()}")
        setattr(options, name, value)
    # Threads that spin between two runs take the cores that read requests and write answers.
    config = {"session.intra_op.allow_spinning": "0"} | data["session_config"]
    for name, value in config.items():
        options.add_session_config_entry(name, value)
    library = artifact / "lib" / "libonnxopt_ops.so"
    if library.is_file() and data.get("library", True):  # an artifact in which nothing was fused has none
        options.register_custom_ops_library(str(library))
    if data["provider"] == CUDA:
        ort.preload_dlls()
    graph = data.get("cuda_graph", {}).get("provider_options", {})
    providers = [(data["provider"], data["provider_options"] | graph), *([CPU] if data["provider"] != CPU else [])]
    opened = ort.InferenceSession(str(artifact / "model.onnx"), options, providers=providers)
    if data["provider"] not in opened.get_providers():
        raise ValueError(f"ONNX Runtime could not start {data['provider']}; its log says why")
    return opened


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("provider") not in (CUDA, CPU):
        raise ValueError(f"{path}: is for another provider than {CUDA} and {CPU}")
    return data

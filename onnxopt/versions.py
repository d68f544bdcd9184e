"""Versions of onnxopt and of its dependencies, from the installed packages' metadata."""

from __future__ import annotations

import re
from pathlib import Path

_DEPENDENCIES = (
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "cuda-bindings",
    "nvidia-cuda-nvrtc-cu12",  # what compiled the kernels
    "nvidia-cuda-nvcc-cu12",  # what assembled them, where it is installed
)


def onnxopt() -> str:
    """onnxopt's version; in a source tree that is not installed, the one its setup.cfg states."""
    import importlib.metadata  # takes longer than the rest of `onnxopt --help`

    try:
        return importlib.metadata.version("onnxopt")
    except importlib.metadata.PackageNotFoundError:
        setup = Path(__file__).resolve().parent.parent / "setup.cfg"
        stated = re.search(r"^version\s*=\s*(\S+)$", setup.read_text("utf-8"), re.M) if setup.is_file() else None
        return stated[1] if stated else "unknown"


def dependencies() -> dict[str, str]:
    """Versions of the installed packages that decide what optimize writes."""
    import importlib.metadata

    installed = {}
    for name in _DEPENDENCIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed

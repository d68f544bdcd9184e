"""Versions of onnxopt and of its dependencies, from the installed packages' metadata."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from onnxopt import paths

_COMPILERS = (
    "nvidia-cuda-nvrtc-cu12",  # what compiles the kernels
    "nvidia-cuda-nvcc-cu12",  # what assembles them, where it is installed
)
_DEPENDENCIES = (
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "cuda-bindings",
    *_COMPILERS,
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


@functools.cache
def code() -> str:
    """A digest of everything that onnxopt consists of: another one for each change of a source tree."""
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for root in (package, paths.cuda_kernels()):
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def dependencies() -> dict[str, str]:
    """Versions of the installed packages that decide what optimize writes."""
    return _installed(_DEPENDENCIES)


def compilers() -> dict[str, str]:
    """Versions of the installed packages that make machine code."""
    return _installed(_COMPILERS)


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    import importlib.metadata

    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed

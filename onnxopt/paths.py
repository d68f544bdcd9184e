"""Paths of the files that onnxopt ships: in the installed package, or beside it in a source tree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]

_PACKAGE = Path(__file__).resolve().parent


def cuda_kernels() -> Path:
    """The folder of the CUDA headers that generated kernels include."""
    installed = _PACKAGE / "cuda_kernels"
    return installed if installed.is_dir() else _PACKAGE.parent / "cuda_kernels"


def library() -> Path:
    """The built custom-op library; it may be missing in a source tree (`make build`)."""
    return _PACKAGE / "lib" / "libonnxopt_ops.so"


def get_include() -> Path:
    """The folder of onnxopt.h, which opens artifacts in C++, and of Onnxopt.cs, which does it in C#."""
    return _PACKAGE / "include"

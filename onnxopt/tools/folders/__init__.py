"""Folders: each model of a folder of Hugging Face or optimum optimized, other files copied, one library for all."""

from __future__ import annotations

from onnxopt.tools.folders.flow import optimize_folder
from onnxopt.tools.folders.result import FolderModel, OptimizedFolder

__all__ = ["FolderModel", "OptimizedFolder", "optimize_folder"]

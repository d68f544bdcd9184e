"""The whole of onnxopt: a model in, a verified artifact folder out. flow.py has its steps."""

from __future__ import annotations

from onnxopt.pipeline.flow import Artifact, optimize
from onnxopt.pipeline.options import OptionChanges, Options

__all__ = ["Artifact", "OptionChanges", "Options", "optimize"]

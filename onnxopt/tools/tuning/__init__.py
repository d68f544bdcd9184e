"""Tune: an artifact's provider file for this machine, refined by measurement."""

from __future__ import annotations

from onnxopt.tools.tuning.flow import tune
from onnxopt.tools.tuning.result import Change, Result

__all__ = ["Change", "Result", "tune"]

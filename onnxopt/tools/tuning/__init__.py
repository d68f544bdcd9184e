"""Tune: an artifact's provider file for this machine, refined by measurement. May import every room."""

from __future__ import annotations

from onnxopt.tools.tuning.flow import tune
from onnxopt.tools.tuning.result import OptionChange, TuneResult

__all__ = ["OptionChange", "TuneResult", "tune"]

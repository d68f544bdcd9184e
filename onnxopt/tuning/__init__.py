"""Tune: an artifact's provider file for this machine, refined by measurement."""

from __future__ import annotations

from onnxopt.tuning.flow import Change, Result, tune

__all__ = ["Change", "Result", "tune"]

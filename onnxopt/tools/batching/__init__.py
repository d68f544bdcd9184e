"""Many models: which ones, one after the other or on many processes and machines, and what became of each."""

from __future__ import annotations

from onnxopt.tools.batching.flow import BatchResult, batch
from onnxopt.tools.batching.work import FusionCounts, MeasuredTimes, ModelOutcome

__all__ = ["BatchResult", "FusionCounts", "MeasuredTimes", "ModelOutcome", "batch"]

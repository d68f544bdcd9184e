"""Doctor: what prevents artifacts from running fast here, with a fix for each problem. May import every room."""

from __future__ import annotations

from onnxopt.tools.doctor.examination import examine
from onnxopt.tools.doctor.finding import Finding

__all__ = ["Finding", "examine"]

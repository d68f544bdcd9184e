"""Doctor: what keeps an artifact, or any, from running fast here, and what to do about each thing found."""

from __future__ import annotations

from onnxopt.tools.doctor.examination import examine
from onnxopt.tools.doctor.finding import Finding

__all__ = ["Finding", "examine"]

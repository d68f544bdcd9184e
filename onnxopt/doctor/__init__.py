"""Doctor: what keeps an artifact, or any, from running fast here, and what to do about each thing found."""

from __future__ import annotations

from onnxopt.doctor.examination import examine
from onnxopt.doctor.finding import Finding

__all__ = ["Finding", "examine"]

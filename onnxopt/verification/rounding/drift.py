"""Drift: how far an output as a whole lies beside another, where its single elements say nothing.

Of an original that is far from what it means, as ONNX Runtime's Sigmoid of -16 is, each element may be anything. Errors
of many elements cancel in the factor between two outputs, though, and a wrong kernel shows in it.
"""

from __future__ import annotations

import numpy as np

from onnxopt.verification.compare import Array

_MIN = 16  # elements
_SIGMAS = 6.0


def drift(reference: Array, other: Array) -> float:
    """The factor from a reference to an output, less 1; 0 where that says nothing."""
    a, b = _both(reference, other)
    square = float(np.sum(a * a))
    return 0.0 if a.size < _MIN or not square else float(np.sum(a * (b - a))) / square


def spread_of_drift(reference: Array, other: Array) -> float:
    """How far a drift may be by chance, where an output is another with errors that do not depend on each other."""
    a, b = _both(reference, other)
    square = float(np.sum(a * a))
    return _SIGMAS * float(np.sqrt(np.sum(np.square(a * (b - a))))) / square if square else 0.0


def _both(reference: Array, other: Array) -> tuple[Array, Array]:
    a, b = reference.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    greatest = float(np.abs(a[finite]).max(initial=0.0)) or 1.0
    return a[finite] / greatest, b[finite] / greatest

"""Which products of a quantized model go back to float32 first: measured, each alone, for what it saves."""

from __future__ import annotations

import itertools
import math

import pytest

from onnxopt.tools.quantization import sensitivity
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.sensitivity import Sensitivity
from onnxopt.verification.lowering.goals import Quality

# Rounding the weight of "first" costs least, and the outputs most; "large" saves 16 times as much as the others.
PRODUCTS = [
    Product("first", "MatMul", 64, 64, 1e-6),
    Product("second", "MatMul", 64, 64, 1e-4),
    Product("large", "MatMul", 256, 256, 1e-4),
    Product("exact", "MatMul", 64, 64, 0.0),
]
DECIBELS = {"first": 20.0, "second": 40.0, "large": 30.0, "exact": None}


def _quality(decibels: float | None, invalid: int = 0) -> list[Quality]:
    return [Quality("P", False, "better", 1, 99.0, 1.0, 1.0), Quality("P", False, "y", 1, decibels, 1.0, 1.0, invalid)]


def test_noise_at_the_outputs_for_what_is_saved() -> None:
    asked = []
    found = Sensitivity(PRODUCTS, lambda name: asked.append(name) or _quality(DECIBELS[name]))
    assert asked == []
    order = sorted(DECIBELS, key=lambda name: -found.loss(name))
    assert order == ["first", "second", "large", "exact"]
    assert found.loss("first") == pytest.approx(1e-2 / 64**2) and found.loss("large") == pytest.approx(1e-3 / 256**2)
    assert sorted(asked) == sorted(DECIBELS)  # each once
    assert found.alone == {"first": 20.0, "second": 40.0, "large": 30.0, "exact": 99.0}


def test_what_breaks_an_output_goes_back_first() -> None:
    found = Sensitivity(PRODUCTS, lambda name: _quality(DECIBELS[name], invalid=name == "large"))
    assert found.loss("large") == math.inf


def test_without_time_the_weights_noise_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In proportion to what was measured."""
    clock = itertools.count(0, 40)
    monkeypatch.setattr(sensitivity.time, "monotonic", lambda: next(clock))
    found = Sensitivity(PRODUCTS, lambda name: _quality(DECIBELS[name]))
    assert found.loss("second") == pytest.approx(1e-4 / 64**2)
    assert set(found.alone) == {"second"}
    assert found.loss("first") == pytest.approx(1e-6 / 64**2)
    assert found.loss("exact") == 0.0

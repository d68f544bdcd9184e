"""compare: each figure against a value worked out by hand, and what passes against what does not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxopt.verification.compare import LIMITS, Limit, compare

EXACT = Limit(0.0)
FLOAT32 = Limit.of("float32", float_decides=True)


def test_figures() -> None:
    reference = np.array([[1.0, -2.0], [4.0, 0.0]], np.float32)
    actual = np.array([[1.5, -2.0], [4.0, 8.0]], np.float32)
    found = compare(reference, actual, FLOAT32)
    assert found.max_abs == 8.0
    assert found.max_rel == 0.5  # the element whose reference is 0 has no relative difference
    assert found.argmax == 0.5
    assert found.agreement == 0.5
    expected = (1.5 + 4 + 16) / np.sqrt(21.0 * (1.5**2 + 4 + 16 + 64))
    assert found.cosine == pytest.approx(expected)
    assert not found.ok
    assert "off by up to 8" in found.reason


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16], ids=str)
def test_ulp_counts_representable_values(dtype: type) -> None:
    one = np.ones(1, dtype)
    following = (one.view(f"u{one.dtype.itemsize}") + 3).view(dtype)
    assert compare(one, following, EXACT).ulp == 3
    assert compare(-one, -following, EXACT).ulp == 3
    tiny = np.array([1], f"u{one.dtype.itemsize}").view(dtype)
    assert compare(tiny, -tiny, EXACT).ulp == 2  # across zero, which counts once


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_side=5), elements=st.floats(width=32)))
def test_every_array_agrees_with_itself(array: np.ndarray) -> None:
    found = compare(array, array.copy(), EXACT)
    assert found.ok
    assert found.agreement == 1.0
    assert found.ulp in (0, None)


def test_nan_and_infinity_must_stand_in_the_same_places() -> None:
    reference = np.array([1.0, np.nan, np.inf], np.float32)
    assert compare(reference, reference, FLOAT32).ok
    moved = compare(reference, np.array([np.nan, 1.0, np.inf], np.float32), FLOAT32)
    assert not moved.ok
    assert not moved.same_nan
    negative = compare(reference, np.array([1.0, np.nan, -np.inf], np.float32), FLOAT32)
    assert not negative.ok
    assert not negative.same_inf


def test_limit_scales_with_the_outputs_magnitude() -> None:
    reference = np.full(100, 1e-4, np.float32)
    slightly_off = reference * np.float32(1 + LIMITS["float32"])
    far_off = reference * np.float32(1 + 3 * LIMITS["float32"])
    assert compare(reference, slightly_off, FLOAT32).ok
    assert not compare(reference, far_off, FLOAT32).ok
    assert compare(reference * 1e6, slightly_off * np.float32(1e6), FLOAT32).ok


def test_figures_of_the_greatest_floats_stay_finite() -> None:
    greatest = np.full(2, np.finfo(np.float64).max)
    found = compare(greatest, -greatest, FLOAT32)
    assert not found.ok
    assert np.isfinite([found.max_abs, found.max_rel, found.excess or 0, found.cosine or 0]).all()


def test_integers_are_exact_unless_floats_decide() -> None:
    reference = np.arange(1000)
    actual = reference.copy()
    actual[0] = 7
    assert compare(reference, actual, FLOAT32).ok
    refused = compare(reference, actual, Limit.of("float32", float_decides=False))
    assert not refused.ok
    assert "0.100% of the elements differ" in refused.reason
    assert compare(np.array(["a", "b"], object), np.array(["a", "b"], object), EXACT).ok
    assert not compare(np.array([True]), np.array([False]), EXACT).ok


def test_dtype_and_shape_must_agree() -> None:
    x = np.zeros((2, 3), np.float32)
    assert compare(x, x.astype(np.float64), FLOAT32).reason == "dtype is float64, not float32"
    assert compare(x, x.T, FLOAT32).reason == "shape is [3, 2], not [2, 3]"
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), EXACT).ok

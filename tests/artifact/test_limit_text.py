"""How the texts of a verification state a difference beside its limit."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.artifact.summary import limit_text
from onnxopt.tools.commands.verification_text import _worst
from onnxopt.verification.compare import Difference, Limit, compare


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0057, "0.57 % of the limit"),
        (0.06, "6 % of the limit"),
        (0.994, "99 % of the limit"),
        (1.0, "1 times the limit"),
        (12.34, "12.3 times the limit"),
    ],
)
def test_a_share_of_the_limit(share: float, text: str) -> None:
    assert limit_text(share) == text


def compared(reference: list[float], actual: list[float], dtype: str) -> Difference:
    limit = Limit(1e-4, 1.0 if dtype == "float32" else 0.5)
    return compare(np.array(reference, dtype), np.array(actual, dtype), limit)


def test_the_output_nearest_to_its_limit_is_named() -> None:
    """By its largest absolute error; another output's larger error, which its magnitude allows, is not."""
    near = compared([1.0, 1.0], [1.0, 1.0001], "float32")
    large = compared([1e4, 1e4], [1e4, 1e4 + 0.01], "float32")
    assert _worst([large, near]) == "max abs error 0.0001 (50 % of the limit)"
    assert _worst([large]) == "max abs error 0.0098 (0.49 % of the limit)"
    equal = compared([1.0], [1.0], "float32")
    assert _worst([equal, equal]) == "equal"
    assert _worst([Difference("float32", (1,), excess=None, reason="shape is [2], not [1]")]) == "not comparable"


def test_integers_are_counted() -> None:
    half = compared([1, 2, 3, 4], [1, 2, 3, 5], "int64")
    assert _worst([half]) == "25.00% of the elements differ (50 % of the limit)"

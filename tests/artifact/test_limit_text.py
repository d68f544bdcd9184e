"""How the texts of a verification state a difference beside its limit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from onnxopt import text_table
from onnxopt.artifact import result, result_table
from onnxopt.artifact.summary import limit_text
from onnxopt.verification.check import Check
from onnxopt.verification.compare import Difference, Limit, compare
from onnxopt.verification.rounding.exactness import Exactness
from onnxopt.verification.verify import VerificationReport


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


def errors_of(*differences: Difference) -> result.Errors:
    checks = tuple(Check("CPUExecutionProvider", True, f"case {k}", "y", d) for k, d in enumerate(differences))
    (row,) = result.errors(VerificationReport("passed", providers=("CPUExecutionProvider",), checks=checks))
    return row


def shown(row: result.Errors) -> list[str]:
    """The words of the table's last line after the number of cases."""
    return text_table.drawn([result_table.errors_table([row])]).splitlines()[-1].split()[4:]


NEAR = compared([1.0, 1.0], [1.0, 1.0001], "float32")
LARGE = compared([1e4, 1e4], [1e4, 1e4 + 0.01], "float32")  # which its magnitude allows
EQUAL = compared([1.0], [1.0], "float32")
OTHER_SHAPE = Difference("float32", (1,), excess=None, reason="shape is [2], not [1]")


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ([LARGE, NEAR], "1 1.0e-04 5.0e-05 1.0e-04 5.0e-05 50 %"),
        ([LARGE], "0 9.8e-03 4.9e-03 9.8e-07 4.9e-07 0.49 %"),
        ([dataclasses.replace(NEAR, mean_abs=None, mean_rel=None)], "0 1.0e-04 1.0e-04 50 %"),  # of a manifest
        ([compared([1, 2, 3, 4], [1, 2, 3, 5], "int64")], "0 25.00% differ 50 %"),
        ([EQUAL, EQUAL], " equal 0 %"),
        ([EQUAL, OTHER_SHAPE], " not comparable"),
    ],
)
def test_the_errors_are_those_of_the_output_nearest_to_its_limit(differences: list[Difference], words: str) -> None:
    row, (case, _, rest) = errors_of(*differences), words.partition(" ")
    assert (row.case.removeprefix("case "), shown(row)) == (case, rest.split())
    assert row.status == ("FAILED" if OTHER_SHAPE in differences else "passed")


FAR = compared([1.0, 1.0], [1.0, 1.01], "float32")


@pytest.mark.parametrize(
    ("speaks", "reason"),
    [
        ({}, ""),  # fails
        ({"exactness": Exactness(14.2, 14.3)}, "14.2 times the limit from float32, the original 14.3 times"),
        ({"exactness": Exactness(29.0, 14.3)}, ""),
        (
            {"noise": 13.0},
            "where the original's results change in their last place, it moves by 13 times the limit",
        ),
        ({"unstable": True}, "where the original's results change in their last place, its shape or its NaNs change"),
    ],
)
def test_why_an_output_passes_beyond_the_limit(speaks: dict[str, Any], reason: str) -> None:
    checks = (
        Check("CPUExecutionProvider", True, "case 0", "y", NEAR, exactness=Exactness(0.1, 0.1)),
        Check("CPUExecutionProvider", True, "case 1", "z", FAR, **speaks),
    )
    (row,) = result.errors(VerificationReport("passed", providers=("CPUExecutionProvider",), checks=checks))
    assert (row.output, row.case, row.why_beyond) == ("z", "case 1", reason)
    assert (row.status == "passed") is bool(reason)
    lines = text_table.drawn(result_table.beyond_the_limit([row, row])).splitlines()
    assert lines == ([f"z passes beyond the limit: {reason}"] if reason else [])

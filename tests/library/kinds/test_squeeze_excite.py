"""Calls of squeeze-excites: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases.squeeze_excite import Case, fused
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")

CASE = Case((2, 6, 6, 16), 4)


def _calls(
    folder: Path, case: Case, feeds: list[dict[str, np.ndarray]], change: idle_gpu.Change | None = None
) -> list[dict[str, tuple[int, ...]] | str]:
    found = fused(case)
    return idle_gpu.calls(folder / "run", found.optimized, idle_gpu.document([found.kernel], change), feeds)


def test_a_model_of_any_shape(tmp_path: Path) -> None:
    first = Case((1, 8, 8, 5), 3, stride=2, known=False)
    sizes = ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8), (1, 8, 300))
    cases = [dataclasses.replace(first, x=(*size, 5)) for size in sizes]
    huge = {"t": np.zeros((0, 2**31, 8, 5), np.float32)}
    *shapes, said = _calls(tmp_path, first, [*(case.feeds() for case in cases), huge])
    assert shapes == [{"v": tuple(case.result_dims()), "f": (case.x[0], 1, 1, 5)} for case in cases]
    assert "x [0, 2147483648, 8, 5] has a dim of 2^31 or more" in said


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden", 3, "first.weight [4, 16] is not [hidden, channels], here [3, 16]"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    assert said in _calls(tmp_path, CASE, [CASE.feeds()], set_field(f"kernels.0.{field}", value))[0]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("variants.0.unroll", 5, "unroll is above 4"),
        ("variants.1.threads", 500, "threads is no multiple of a warp"),
    ],
)
def test_damaged(field: str, value: Any, said: str, tmp_path: Path) -> None:
    changed = idle_gpu.document([fused(CASE).kernel], set_field(f"kernels.0.{field}", value))
    idle_gpu.assert_refused(tmp_path, changed, said)


@pytest.mark.parametrize("kept", [slice(0, 3), slice(1, None), slice(3, None), slice(None, None, -1)])
def test_entry_points_in_another_order_are_refused(kept: slice, tmp_path: Path) -> None:
    described = idle_gpu.document([fused(CASE).kernel])
    described["kernels"][0]["variants"] = described["kernels"][0]["variants"][kept]
    idle_gpu.assert_refused(tmp_path, described, "are not the products, followed by those of the map")

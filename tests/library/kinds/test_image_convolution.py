"""Calls of image convolutions: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.image_convolution import Case, fused
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
CASE = Case((2, 3, 16, 18), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="prelu", appended=1)


def _calls(folder: Path, case: Case, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, tuple[int, ...]] | str]:
    found = fused(case)
    return idle_gpu.calls(folder / "run", found.optimized, idle_gpu.document(found.kernels), feeds)


def test_a_model_of_any_shape(tmp_path: Path) -> None:
    sizes = ((1, 8, 8), (3, 1, 1), (2, 30, 5), (1, 8, 300), (0, 8, 8))
    feeds = [{"t": np.zeros((n, 3, h, w), np.float16)} for n, h, w in sizes]
    found = _calls(tmp_path, dataclasses.replace(CASE, known=False), feeds)
    assert found == [{"y": (n, (h + 1) // 2, (w + 1) // 2, 16)} for n, h, w in sizes]


def test_a_kernel_larger_than_its_input_is_refused(tmp_path: Path) -> None:
    case = Case((1, 3, 3, 3), 8, (5, 5), known=False)
    (said,) = _calls(tmp_path, case, [case.feeds()])
    assert "a window of 5 x 5 is larger than its padded image of 3 x 3" in said


VARIANT = "kernels.0.variants.0"
DAMAGE = {
    "threads of no whole warp": (f"{VARIANT}.threads", 100, "is no multiple of a warp"),
    "rows of no whole block": (f"{VARIANT}.across", 48, "does not divide a block's outputs"),
    "filters of no whole block": (f"{VARIANT}.filters", 24, "does not divide the kernel's filters"),
    "no products": (f"{VARIANT}.products", 0, "products is not an integer from 1"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    idle_gpu.assert_refused(tmp_path, idle_gpu.document(fused(CASE).kernels, set_field(field, value)), message)

"""Calls of mixtures of experts: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases.experts import Case, fused
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")

CASE = Case(3, 4, 2, 16, 8)


def _calls(
    folder: Path, feeds: list[dict[str, np.ndarray]], change: idle_gpu.Change | None = None
) -> list[dict[str, tuple[int, ...]] | str]:
    found = fused(CASE)
    return idle_gpu.calls(folder / "run", found.optimized, idle_gpu.document(found.kernels[:1], change), feeds)


def test_a_model_of_any_number_of_tokens(tmp_path: Path) -> None:
    """An id of no expert, which TopK may make of NaN, is no error of the host."""
    feeds = [dataclasses.replace(CASE, tokens=tokens).feeds() for tokens in (0, 1, 5, 40)]
    feeds.append(feeds[1] | {"scores": feeds[1]["scores"] * np.float32(np.nan)})
    assert _calls(tmp_path, feeds) == [{"y": (len(given["x"]), 16)} for given in feeds]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("experts", 5, "first [4, 16, 16] is not [experts, columns, wide], here [5, 16, 16]"),
        ("hidden", 12, "first [4, 16, 16] is not [experts, columns, wide], here [4, 16, 24]"),
        ("chosen", 3, "ids [3, 2] is not [N, chosen], here [3, 3]"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    assert said in _calls(tmp_path, [CASE.feeds()], set_field(f"kernels.0.{field}", value))[0]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("variants.0.columns", 16, "have sides of tiles that do not fit their launches"),
        ("variants.4.rows", 16, "have sides of tiles that do not fit their launches"),
        ("variants.0.threads", 100, "threads is no multiple of a warp"),
        ("variants.0.shared", 65537, "shared is not an integer from 0"),
        ("variants.12.least_rows", -1, "least_rows is not an integer from 0"),
    ],
)
def test_damaged(field: str, value: Any, said: str, tmp_path: Path) -> None:
    described = idle_gpu.document(fused(CASE).kernels[:1], set_field(f"kernels.0.{field}", value))
    idle_gpu.assert_refused(tmp_path, described, said)


def test_missing_entry_points_are_refused(tmp_path: Path) -> None:
    described = idle_gpu.document(fused(CASE).kernels[:1])
    described["kernels"][0]["variants"].pop()
    idle_gpu.assert_refused(tmp_path, described, "are not the 15 launches")

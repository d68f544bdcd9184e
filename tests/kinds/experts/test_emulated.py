"""Mixtures of experts of the CUDA text, run on the CPU by g++ through the library's own launches, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support import emulated_library
from tests.support.depthwise_models import bodiless
from tests.support.experts_models import Case, fused

pytestmark = pytest.mark.usefixtures("library")

FEW = {"first_of_few", "second_of_few", "join"}
MANY = {"route", "first_of_many", "second_of_many", "join"}


def _launched(folder: Path, case: Case, *feeds: dict[str, np.ndarray]) -> set[str]:
    """Run one session over these feeds; the entry points that ran."""
    found = fused(case)
    (kernel,) = found.kernels
    results, symbols = emulated_library.run(folder, bodiless(found.optimized), [kernel], feeds)
    for feed, result in zip(feeds, results, strict=True):
        of = dataclasses.replace(case, tokens=len(feed["x"]))
        assert (error := of.worst(result["y"], of.expected(feed))) <= 1, (of, error)
    return {s.removeprefix(f"{kernel.name}_") for s in symbols}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_few_tokens(dtype: str, tmp_path: Path) -> None:
    case = Case(1, 4, 2, 72, 40, dtype, wide=dtype != "bfloat16")
    feeds = [dataclasses.replace(case, tokens=t).feeds() for t in (1, 2, 16)]
    feeds[2]["scores"][:, :2] += 100  # all tokens choose the same two experts
    assert _launched(tmp_path / "run", case, *feeds) == FEW


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_many_tokens(dtype: str, tmp_path: Path) -> None:
    case = Case(17, 3, 2, 40, 72, dtype)
    feeds = [dataclasses.replace(case, tokens=t).feeds() for t in (17, 150)]
    feeds[1]["scores"][:, 1] += 100  # more rows than a tile has, and an expert with few
    assert _launched(tmp_path / "run", case, *feeds) == MANY

"""Calls of group norms: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.group_norm import Case, fused
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")


def _calls(folder: Path, case: Case, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, tuple[int, ...]] | str]:
    found = fused(case)
    return idle_gpu.calls(folder / "run", found.optimized, idle_gpu.document(found.kernels), feeds)


def test_a_model_of_any_shape(tmp_path: Path) -> None:
    first = Case((1, 8, 8, 12), 4, "float16", "spelled_open", "time", "affine_silu", known=False)
    sizes = ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8), (1, 0, 8))
    cases = [dataclasses.replace(first, x=(*size, 12)) for size in sizes]
    assert _calls(tmp_path, first, [case.feeds() for case in cases]) == [{"y": case.x} for case in cases]


def test_volumes(tmp_path: Path) -> None:
    first = Case((1, 2, 3, 4, 12), 4, "float16", "group", "time", "affine_silu", known=False)
    cases = [dataclasses.replace(first, x=(*size, 12)) for size in ((1, 2, 3, 4), (3, 1, 1, 5), (2, 0, 3, 4))]
    assert _calls(tmp_path, first, [case.feeds() for case in cases]) == [{"y": case.x} for case in cases]


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = Case((2, 6, 6, 8), 4, form="group", in_front="time", behind="residual", known=False)
    feeds = case.feeds()
    twice = [{**feeds, name: np.concatenate([feeds[name]] * 2)} for name in ("r", "e")]
    huge = {**feeds, "t": np.zeros((0, 2**16, 2**16, 8), np.float32)}
    *both, pixels = _calls(tmp_path, case, [*twice, huge])
    assert all(f"is not read by {form} beside" in said for said, form in zip(both, ("element", "sample"), strict=True))
    assert "2^31 pixels or more" in pixels


DAMAGE = {
    "unknown layout": ("kernels.0.variants.0.layout", "tiled", 'is "tiled", not one of held, split, looped'),
    "half a group": ("kernels.0.variants.0.columns", 1, "are not those of whole groups"),
    "nothing held": ("kernels.0.variants.0.held", 0, "held is of blocks that hold their elements"),
    "threads of no whole warp": ("kernels.0.variants.0.threads", 100, "is no multiple of a warp"),
    "a launch too few": ("kernels.0.variants.7.launch", 0, "whose launches are not all there"),
    "a launch that is none": ("kernels.0.variants.0.launch", 1, "launch is not 0"),
    "a cluster that loops": ("kernels.0.variants.8.cluster", 2, "is of blocks that hold their elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    case = Case((2, 6, 6, 32), 4, form="group", in_front="time", behind="residual", known=False, part=8)
    idle_gpu.assert_refused(tmp_path, idle_gpu.document(fused(case).kernels, set_field(field, value)), message)

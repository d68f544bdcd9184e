"""Calls of depthwise convolutions behind a 1x1 convolution: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.depthwise import fused
from cases.expanded_depthwise import ExpandedCase
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")

CASE = ExpandedCase((2, 9, 7, 16), (5, 5), (2, 2), pads=(2, 2, 2, 2), wide=40, behind="silu")


def test_a_model_of_any_shape(tmp_path: Path) -> None:
    first = dataclasses.replace(CASE, known=False)
    sizes = ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8))
    cases = [dataclasses.replace(first, x=(*size, 16)) for size in sizes]
    described = idle_gpu.document(fused(first).kernels)
    found = idle_gpu.calls(tmp_path / "run", fused(first).optimized, described, [case.feeds() for case in cases])
    assert found == [{"y": tuple(case.result_dims())} for case in cases]


def test_another_number_of_channels_is_refused(tmp_path: Path) -> None:
    found = fused(dataclasses.replace(CASE, known=False))
    described = idle_gpu.document(found.kernels, set_field("kernels.0.expansion.channels", 8))
    given = {"t": np.zeros((1, 4, 4, 16), np.float16)}
    (said,) = idle_gpu.calls(tmp_path / "run", found.optimized, described, [given])
    assert "x [1, 4, 4, 16] is not [N, H, W, x_channels], here [1, 4, 4, 8]" in said


DAMAGE = {
    "another layout": ("kernels.0.variants.0.layout", "held", "layout does not fit the kernel's meaning"),
    "a huge tile": ("kernels.0.variants.0.across", 64, "across is not an integer from 1 to 32"),
    "no rows": ("kernels.0.variants.0.down", 0, "down is not an integer from 1 to 32"),
    "no chunks": ("kernels.0.variants.0.chunks", 0, "chunks is 0"),
    "a wide vector": ("kernels.0.variants.0.vector", 16, "vector is wider than one access"),
    "few threads": ("kernels.0.variants.0.threads", 0, "threads is not an integer from"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    idle_gpu.assert_refused(tmp_path, idle_gpu.document(fused(CASE).kernels, set_field(field, value)), message)

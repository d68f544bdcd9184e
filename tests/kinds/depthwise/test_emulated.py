"""CUDA kernels of depthwise convolutions, run on the CPU by g++, against float64.

Every entry point of each case is run with the grid and numbers that the library hands over (emulation/
depthwise_launches.cc compiles its code): what is tested is the device code, its tails and its host.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.depthwise import Case, fused, worst
from tests.support.emulation import emulated_depthwise

_SAME = {1: (0, 0, 0, 0), 3: (1, 1, 1, 1), 5: (2, 2, 2, 2), 7: (3, 3, 3, 3)}


def _agree(tmp_path: Path, cases: list[Case]) -> list[str]:
    """The entry points that were run, without the kernels' names."""
    found = emulated_depthwise.results(tmp_path, cases)
    assert {case for case, _ in found} == set(cases)
    wrong = [(case, symbol, e) for (case, symbol), (y, x) in found.items() if not (e := worst(case, y, x)) <= 1]
    assert not wrong
    return [symbol.split("_", 2)[2] for _, symbol in found]


def test_float32_windows(tmp_path: Path) -> None:
    cases = [
        Case((2, 7, 9, 6), (3, 3), pads=_SAME[3]),
        Case((1, 5, 6, 3), (1, 1), behind="silu"),
        Case((1, 9, 8, 4), (5, 5), (2, 2), pads=(1, 2, 2, 1), in_front="bias_silu", behind="relu"),
        Case((1, 10, 12, 1), (7, 7), pads=_SAME[7], in_front="relu6"),
        Case((2, 6, 13, 5), (3, 5), (1, 2), pads=(0, 1, 2, 3), behind="hardswish"),
        Case((1, 12, 9, 2), (3, 3), (3, 1), (2, 4), pads=(2, 4, 1, 4), bias=False),
        Case((1, 2, 3, 16), (5, 5), pads=(2, 3, 3, 2), behind="residual"),  # a map smaller than the kernel
        Case((1, 6, 5, 4), (3, 3), (2, 2), auto_pad="SAME_UPPER", behind="gelu_residual_scale"),
        Case((1, 6, 5, 4), (2, 4), (2, 3), auto_pad="SAME_LOWER"),
        Case((1, 6, 7, 4), (3, 3), auto_pad="VALID", in_front="scale", behind="residual"),
        Case((1, 0, 0, 3), (3, 3), pads=(2, 2, 2, 2), behind="relu"),  # nothing but padding
    ]
    assert any(s.startswith("held") for s in _agree(tmp_path, cases))


def test_float32_large_windows(tmp_path: Path) -> None:
    cases = [
        Case((1, 11, 12, 4), (9, 9), pads=(4, 4, 4, 4), behind="silu"),
        Case((1, 6, 9, 2), (11, 11), (2, 1), pads=(5, 6, 5, 4), in_front="bias_silu"),
        Case((1, 9, 12, 2), (8, 19), (1, 2), (1, 2), pads=(4, 18, 4, 18), behind="residual"),  # in parts of 16 taps
        Case((1, 4, 40, 1), (2, 33), pads=(1, 16, 0, 16)),
    ]
    assert {s.split("_")[0] for s in _agree(tmp_path, cases)} == {"walking"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(tmp_path: Path, dtype: str) -> None:
    """Every other one of bfloat16, whose conversions alone are others."""
    cases = [
        Case((1, 9, 11, 37), (3, 3), pads=_SAME[3], dtype=dtype, behind="silu"),
        Case((1, 9, 11, 10), (3, 3), (2, 2), pads=(1, 0, 1, 1), dtype=dtype, behind="relu", in_front="scale"),
        Case((1, 6, 9, 8), (5, 5), (2, 1), pads=_SAME[5], dtype=dtype, behind="residual"),
        Case((2, 1, 1, 24), (3, 5), pads=(1, 2, 1, 2), dtype=dtype, behind="silu", known=False),
        Case((1, 3, 5, 6), (11, 11), pads=(5, 5, 5, 5), dtype=dtype, behind="hardswish"),
        Case((2, 9, 3, 8), (3, 3), pads=_SAME[3], dtype=dtype, behind="silu", known=False),  # narrower than tiles
        Case((1, 8, 13, 6), (3, 3), pads=_SAME[3], dtype=dtype, skip=True, behind="residual", known=False),
        Case((1, 5, 6, 4), (3, 3), pads=(3, 4, 5, 3), dtype=dtype, behind="relu", known=False),  # more than the reach
    ]
    _agree(tmp_path, cases if dtype == "float16" else cases[::2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_banded(tmp_path: Path, dtype: str) -> None:
    first = Case((1, 18, 19, 40), (5, 5), pads=_SAME[5], dtype=dtype, behind="silu")
    cases = [
        first,
        dataclasses.replace(first, x=(3, 5, 7, 24), in_front="bias_silu"),  # two images a tile, of three
        dataclasses.replace(first, x=(1, 9, 17, 8), in_front="relu6", behind="gelu_residual_scale"),
        Case((2, 7, 6, 16), (7, 7), pads=_SAME[7], dtype=dtype, bias=False),
        Case((1, 12, 14, 8), (3, 5), (1, 1), (2, 1), pads=(2, 1, 1, 3), dtype=dtype, behind="residual"),
        Case((1, 8, 35, 8), (7, 7), pads=(3, 2, 4, 3), dtype=dtype, behind="relu"),
        Case((1, 4, 12, 8), (9, 11), pads=(4, 5, 4, 5), dtype=dtype),
    ]
    symbols = _agree(tmp_path, cases)
    assert {s.split("_")[1] for s in symbols if s.startswith("banded")} >= {
        "a1d1c2w8i2p6", "a2d2c4w8i1p9", "a8d7c2w8i1p9", "a2d2c2w8i1p6",
    }  # fmt: skip


def test_infinities_spoil_no_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 * infinity is NaN: a tile of products with one is computed again, others stay as they are."""
    case = Case((1, 18, 35, 8), (5, 5), pads=_SAME[5], dtype="float16", behind="relu")
    given = case.feeds()
    given["t"][0, 3, 7, 5] = np.inf
    given["t"][0, 17, 34, 0] = -np.inf
    given["t"][0, 0, 17, 2] = np.nan
    monkeypatch.setattr(Case, "feeds", lambda self, seed=0: given)
    with np.errstate(all="ignore"):
        cases = [case, dataclasses.replace(case, in_front="bias_silu"), dataclasses.replace(case, behind="residual")]
        given["r"] = np.ones(case.result_dims(), np.float16)
        symbols = _agree(tmp_path, cases)
    assert sum(s.startswith("banded") for s in symbols) >= 3


HOPPER, AMPERE = (9, 227 << 10), (8, 163 << 10)


def _chosen(case: Case, gpu: tuple[int, int] = HOPPER, aligned: int = 256) -> str:
    (kernel,) = fused(case).kernels
    first, every = emulated_depthwise.launches(kernel, case.x, gpu, aligned)
    return kernel.variants[first].symbol.split("_", 2)[2] if first < len(every) else ""


def test_the_entry_point_goes_by_width_alignment_and_gpu() -> None:
    case = Case((2, 14, 14, 96), (7, 7), pads=_SAME[7], dtype="float16", known=False)
    assert _chosen(case) == "banded_a2d2c2w8i1p6"
    assert _chosen(dataclasses.replace(case, x=(2, 7, 7, 96))) == "banded_a1d1c2w8i2p6"
    assert _chosen(dataclasses.replace(case, x=(2, 99, 56, 96))) == "banded_a8d7c2w8i1p9"
    assert _chosen(case, AMPERE) == "held_v1d7a4"
    assert _chosen(case, aligned=8) == "held_v1d7a4"
    assert _chosen(dataclasses.replace(case, x=(2, 14, 14, 90))) == "held_v1d7a4"
    small = dataclasses.replace(case, kernel=(3, 3), pads=_SAME[3])
    assert _chosen(small) == "held_v2d4a2"
    assert _chosen(small, aligned=2) == "held_v1d4a4"
    assert _chosen(dataclasses.replace(small, x=(2, 200, 200, 96))) == "held_v2d7a4"


@pytest.mark.parametrize(
    ("x", "chosen"),
    [
        ((3, 14, 14, 96), "held_v2d4a2"),
        ((4, 14, 14, 96), "held_v2d7a2"),
        ((5, 14, 14, 96), "held_v2d7a4"),
        ((50, 14, 3, 96), "held_v2d7a2"),  # narrower than four columns
        ((50, 14, 1, 96), "held_v2d4a2"),
    ],
)
def test_larger_tiles_where_they_leave_enough_threads(x: tuple[int, int, int, int], chosen: str) -> None:
    """640 on each of the emulation's 4 multiprocessors."""
    assert _chosen(Case(x, (3, 3), pads=_SAME[3], dtype="float16", known=False)) == chosen


@pytest.mark.parametrize(
    ("x", "chosen"),
    [
        ((3, 40_000, 60_000, 8), "held_v2d7a4"),  # an image of 2^34 elements, beyond the products' offsets
        ((70_000, 256, 256, 8), "held_v2d7a4"),  # more images than a grid has rows
        ((1, 100_000_000, 100, 8), "held_v2d7a4"),
        ((1, 4, 300_000_000, 8), ""),  # a row of 2^31 elements
        ((2_000_000_000, 99, 99, 8), ""),  # more blocks than a grid has
    ],
)
def test_sizes_beyond_32_bits_run_or_are_refused(x: tuple[int, int, int, int], chosen: str) -> None:
    case = Case((2, 14, 14, 8), (3, 3), pads=_SAME[3], dtype="float16", known=False)
    (kernel,) = fused(case).kernels
    first, every = emulated_depthwise.launches(kernel, x)
    assert (kernel.variants[first].symbol.split("_", 2)[2] if first < len(every) else "") == chosen

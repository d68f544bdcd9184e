"""CUDA kernels of depthwise convolutions behind a 1x1 convolution, run on the CPU by g++, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.depthwise import fused, worst
from cases.expanded_depthwise import ExpandedCase, random_expanded
from tests.support.emulation import emulated_depthwise

_SAME = {1: (0, 0, 0, 0), 3: (1, 1, 1, 1), 5: (2, 2, 2, 2), 7: (3, 3, 3, 3)}


def _agree(tmp_path: Path, cases: list[ExpandedCase], shift: int = 0) -> list[str]:
    """The entry points that were run, without the kernels' names."""
    found = emulated_depthwise.results(tmp_path, cases, shift)
    assert {case for case, _ in found} == set(cases)
    wrong = [(case, symbol, e) for (case, symbol), (y, x) in found.items() if not (e := worst(case, y, x)) <= 1]
    assert not wrong
    symbols = [symbol.split("_", 2)[2] for _, symbol in found]
    assert all(symbol.startswith("expanded") for symbol in symbols)
    return symbols


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_windows_and_programs(tmp_path: Path, dtype: str) -> None:
    first = ExpandedCase((2, 19, 17, 16), (3, 3), (2, 2), pads=_SAME[3], dtype=dtype, wide=96, behind="silu")
    cases = [
        first,
        dataclasses.replace(first, x=(1, 14, 14, 24), strides=(1, 1), wide=144, in_front="relu6", behind="relu"),
        dataclasses.replace(first, x=(1, 12, 9, 40), kernel=(5, 5), pads=_SAME[5], wide=240, strides=(1, 1)),
        dataclasses.replace(first, x=(1, 13, 16, 24), kernel=(5, 5), pads=_SAME[5], wide=72, in_front="hardswish"),
        dataclasses.replace(first, x=(3, 5, 7, 8), in_front="", wide=8, wide_bias=False, bias=False),
        dataclasses.replace(first, x=(1, 9, 10, 48), in_front="bias_silu", wide=56, behind="hardswish", known=False),
        dataclasses.replace(first, x=(1, 9, 10, 80), in_front="scale", wide=40, behind="", strides=(1, 2)),
        dataclasses.replace(first, x=(1, 8, 9, 64), kernel=(7, 7), pads=(3, 2, 4, 3), wide=24, strides=(2, 1)),
        dataclasses.replace(first, x=(2, 8, 9, 16), kernel=(2, 3), pads=(0, 0, 1, 2), wide=16),
        dataclasses.replace(first, x=(1, 1, 1, 96), wide=32, behind=""),
        dataclasses.replace(first, x=(1, 6, 7, 8), pads=(0, 0, 0, 0), auto_pad="SAME_LOWER", wide=48),
    ]
    _agree(tmp_path, cases)


def test_inputs_and_results_at_any_address(tmp_path: Path) -> None:
    """A caller's tensors may begin at any element."""
    first = ExpandedCase((2, 9, 7, 24), pads=_SAME[3], wide=40, behind="relu")
    _agree(tmp_path, [first, dataclasses.replace(first, kernel=(5, 5), pads=_SAME[5], strides=(2, 2))], shift=1)


def test_infinities_spoil_no_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product's rows are pixels, and none of its columns is padded."""
    case = ExpandedCase((1, 18, 19, 8), pads=_SAME[3], wide=24, in_front="relu", behind="relu")
    given = case.feeds()
    given["t"][0, 3, 7, 5] = np.inf
    given["t"][0, 17, 18, 0] = -np.inf
    given["t"][0, 0, 17, 2] = np.nan
    monkeypatch.setattr(ExpandedCase, "feeds", lambda self, seed=0: given)
    with np.errstate(all="ignore"):
        _agree(tmp_path, [case])


AMPERE, SMALL = (8, 163 << 10), (7, 48 << 10)


def test_the_entry_point_goes_by_width_and_shared_memory() -> None:
    case = ExpandedCase((32, 28, 28, 40), (5, 5), pads=_SAME[5], wide=240)
    (kernel,) = fused(case).kernels
    assert len(kernel.variants) == 2
    for gpu, chosen in ((emulated_depthwise.HOPPER, 0), (AMPERE, 0), (SMALL, 1)):
        assert emulated_depthwise.launches(kernel, case.x, gpu)[0] == chosen
    first, every = emulated_depthwise.launches(kernel, (2_000_000_000, 99, 99, 40))
    assert first == len(every)  # more blocks than a grid has


def test_blocks_share_a_tile_where_there_are_few() -> None:
    case = ExpandedCase((1, 14, 14, 16), pads=_SAME[3], wide=480, known=False)
    (kernel,) = fused(case).kernels
    (few,), (many,) = (emulated_depthwise.launches(kernel, (n, 14, 14, 16))[1][:1] for n in (1, 64))
    assert few.blocks > 4 and few.grid[0] > 1  # the first word of `inner`
    assert (many.blocks, many.grid[0]) == (4 * 64, 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_convolutions(tmp_path: Path, dtype: str) -> None:
    _agree(tmp_path, list(dict.fromkeys(random_expanded(seed, dtype) for seed in range(12))))

"""Which entry point of a depthwise convolution the library launches, by size, alignment and GPU."""

from __future__ import annotations

import dataclasses

import pytest

from cases.depthwise import Case, fused
from cases.expanded_depthwise import ExpandedCase
from tests.support.emulation import kernel_launches
from tests.support.emulation.kernel_launches import Gpu

_SAME = {3: (1, 1, 1, 1), 5: (2, 2, 2, 2), 7: (3, 3, 3, 3)}
SMALL_HOPPER, SMALL_AMPERE = Gpu(multiprocessors=4), Gpu(8, 4, 163 << 10)
VOLTA = Gpu(7, 4, 48 << 10)


def _chosen(case: Case, gpu: Gpu = SMALL_HOPPER, aligned: int = 256) -> str:
    (kernel,) = fused(case).kernels
    return kernel_launches.chosen(kernel, case.sizes(), gpu, aligned)


def test_the_entry_point_goes_by_width_alignment_and_gpu() -> None:
    case = Case((2, 14, 14, 96), (7, 7), pads=_SAME[7], dtype="float16", known=False)
    assert _chosen(case) == "banded_a2d2c2w8i1p6"
    assert _chosen(dataclasses.replace(case, x=(2, 7, 7, 96))) == "banded_a1d1c2w8i2p6"
    assert _chosen(dataclasses.replace(case, x=(2, 99, 56, 96))) == "banded_a8d7c2w8i1p9"
    assert _chosen(case, SMALL_AMPERE) == "held_v1d7a4"
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
    """640 on each of the GPU's 4 multiprocessors."""
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
    assert kernel_launches.chosen(fused(case).kernels[0], x[:3], SMALL_HOPPER) == chosen


def test_the_expanded_entry_point_goes_by_width_and_shared_memory() -> None:
    case = ExpandedCase((32, 28, 28, 40), (5, 5), pads=_SAME[5], wide=240)
    (kernel,) = fused(case).kernels
    assert len(kernel.variants) == 2
    for gpu, chosen in ((SMALL_HOPPER, 0), (SMALL_AMPERE, 0), (VOLTA, 1)):
        assert kernel_launches.launches(kernel, case.sizes(), gpu)[0] == chosen
    first, every = kernel_launches.launches(kernel, (2_000_000_000, 99, 99), SMALL_HOPPER)
    assert first == len(every)  # more blocks than a grid has


def test_blocks_share_a_tile_where_there_are_few() -> None:
    case = ExpandedCase((1, 14, 14, 16), pads=_SAME[3], wide=480, known=False)
    (kernel,) = fused(case).kernels
    (few,), (many,) = (kernel_launches.launches(kernel, (n, 14, 14), SMALL_HOPPER)[1][:1] for n in (1, 64))
    assert few.blocks > 4 and few.blocks % 4 == 0  # several for each of the four tiles
    assert many.blocks == 4 * 64

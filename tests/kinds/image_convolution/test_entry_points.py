"""Which entry point of an image convolution the library launches, by size, alignment, options and GPU."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from cases.image_convolution import STEM, fused
from tests.support.emulation.kernel_launches import Gpu, Launch, launches


def test_the_grid() -> None:
    (kernel,) = fused(STEM).kernels
    ((first, (launch,)), (_, (few,))) = (
        launches(kernel, (32, 224, 224), Gpu(resident=resident)) for resident in (528, 100_000)
    )
    assert (first, launch.blocks) == (0, 528) and few.blocks == 32 * 7 * 7
    assert _plain(launches(kernel, STEM.sizes(), aligned=8)[1][0])
    assert not _plain(launch)


def _plain(launch: Launch) -> int:
    """The word before two divisors of three words each and one of padding (cuda_kernels/image_convolution/abi.h)."""
    return int(np.frombuffer(launch.parameters, np.uint32)[-8])


def test_the_entry_point_of_float32_goes_by_the_option_and_the_gpu() -> None:
    (kernel,) = fused(dataclasses.replace(STEM, dtype="float32", appended=0)).kernels
    case = dataclasses.replace(STEM, dtype="float32", appended=0)
    chosen = {}
    for tf32, shared in itertools.product((True, False), (227 << 10, 64 << 10)):
        first, _ = launches(kernel, case.sizes(), Gpu(shared=shared, tf32=tf32))
        chosen[tf32, shared >> 10] = kernel.variants[first].symbol.split("_")[-1]
    assert chosen == {
        (True, 227): "p2w8a16f64", (False, 227): "p2w8a16f64x", (True, 64): "p2w8a16f32", (False, 64): "p2w8a16f32x",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("x", "runs"),
    [
        ((1, 3, 40_000, 50_000), True),
        ((1, 3, 70_000, 70_000), False),  # an image of 2^32 pixels
        ((1, 3, 2, 2_147_483_000), False),  # tiles that overhang beyond 2^31
        ((2_000_000_000, 3, 99, 99), False),  # more tiles than a grid has
    ],
)
def test_sizes_beyond_32_bits_run_or_are_refused(x: tuple[int, int, int, int], runs: bool) -> None:
    (kernel,) = fused(dataclasses.replace(STEM, known=False)).kernels
    first, (launch,) = launches(kernel, dataclasses.replace(STEM, x=x).sizes())
    assert (first == 0) is runs and (launch.blocks > 0) is runs

"""CUDA kernels of image convolutions, run on the CPU by g++, against float64.

Each case is run with the grid and numbers that the library hands over (emulation/image_convolution_launches.cc compiles
its code): what is tested is the device code, its tails and its host.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from cases.depthwise import worst
from cases.image_convolution import IN_FRONT, Case, fused
from tests.support.emulation import emulated_image_convolution

_TF32 = 500.0  # times the limit of float32: two operands with 11 bits
_BYTES = 32.0  # times the limit of float32, whose results are of about 1: elements are up to 255 here
STEM = Case((1, 3, 30, 37), 64, (7, 7), (2, 2), (3, 3, 3, 3), behind="relu", appended=1)


def _agree(folder: Path, cases: list[Case], **options: object) -> list[str]:
    """The entry points that were run, without the kernels' names."""
    found = emulated_image_convolution.results(folder, cases, **options)  # type: ignore[arg-type]
    assert {case for case, _ in found} == set(cases)
    wrong = []
    for (case, symbol), (y, x) in found.items():
        allowed = _TF32 if case.dtype == "float32" and not symbol.endswith("x") else 1.0
        allowed *= _BYTES if case.dtype == "float32" and case.image == "uint8" else 1.0
        error = worst(case, y, x)  # type: ignore[arg-type]
        if not error <= allowed:
            wrong.append((case, symbol, error / allowed))
    assert not wrong
    return [symbol.split("_")[-1] for _, symbol in found]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_windows(tmp_path: Path, dtype: str) -> None:
    """Every other one of bfloat16, whose products and conversions alone are others."""
    cases = [
        STEM,
        Case((2, 3, 18, 21), 32, (3, 3), (2, 2), (1, 1, 1, 1), behind="silu", appended=1),
        Case((1, 3, 16, 36), 96, (4, 4), (4, 4), appended=1),
        Case((2, 4, 9, 17), 40, (3, 3), (1, 1), (1, 1, 1, 1), bias=False, planes=False),  # pixels of 8 bytes
        Case((1, 1, 12, 40), 8, (3, 3), (2, 2), (1, 1, 1, 1), behind="gelu_scale"),
        Case((1, 2, 15, 20), 24, (5, 5), (3, 3), (2, 1, 0, 2), behind="hardswish", planes=False),
        Case((1, 4, 23, 25), 72, (11, 11), (4, 4), (2, 2, 2, 2), behind="prelu"),
        Case((1, 3, 7, 9), 16, (1, 2), (1, 2), auto_pad="SAME_UPPER", known=False),
        Case((1, 1, 8, 11), 48, (2, 9), (2, 1), auto_pad="SAME_LOWER", appended=2),
        Case((1, 2, 2, 2), 8, (5, 5), (1, 1), (2, 3, 3, 2)),  # an image smaller than the kernel
        Case((1, 3, 0, 0), 8, (3, 3), (1, 1), (2, 2, 2, 2), behind="relu"),  # nothing but padding
    ]
    chosen = cases[::2] if dtype == "bfloat16" else cases
    _agree(tmp_path, [dataclasses.replace(case, dtype=dtype) for case in chosen])


def test_images_of_other_dtypes(tmp_path: Path) -> None:
    """What pads the image is zero behind the program in front, which would make something else of it."""
    with np.errstate(all="ignore"):
        _agree(tmp_path, [*IN_FRONT, *(dataclasses.replace(case, dtype="bfloat16") for case in IN_FRONT[:3])])


def test_images_of_bytes_in_float32(tmp_path: Path) -> None:
    bytes_alone = [case for case in IN_FRONT if case.image == "uint8"]
    _agree(tmp_path, [dataclasses.replace(case, dtype="float32", appended=0) for case in bytes_alone])


def test_every_tile(tmp_path: Path) -> None:
    cases = [
        STEM,
        Case((2, 4, 20, 37), 40, (3, 3), (1, 1), (1, 1, 1, 1), behind="silu", planes=False),
        Case((1, 3, 41, 30), 24, (5, 4), (1, 3), (1, 1, 1, 1)),
    ]
    assert set(_agree(tmp_path, cases, every=True)) >= {
        "p2w4a16f64", "p4w4a16f64", "p2w8a16f64", "p1w8a16f64", "p1w4a16f64", "p2w4a32f64", "p2w8a32f64", "p2w4a8f64",
    }  # fmt: skip


def test_a_result_that_is_not_aligned(tmp_path: Path) -> None:
    cases = [Case((1, 4, 9, 18), 16, (3, 3), (2, 2), behind="silu", planes=planes) for planes in (True, False)]
    _agree(tmp_path, cases, aligned=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_infinities_spoil_no_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """0 * infinity is NaN: a tile of products with one is computed without them, others stay as they are."""
    case = Case((2, 3, 34, 70), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="relu", appended=1, dtype=dtype)
    given = case.feeds()
    given["t"][0, 1, 7, 5] = np.inf
    given["t"][0, 2, 33, 69] = -np.inf
    given["t"][1, 0, 0, 32] = np.nan
    monkeypatch.setattr(Case, "feeds", lambda self, seed=0: given)
    with np.errstate(all="ignore"):
        _agree(tmp_path, [case])


def test_the_grid() -> None:
    (kernel,) = fused(STEM).kernels
    many = dataclasses.replace(STEM, x=(32, 3, 224, 224))
    ((first, (launch,)), (_, (few,))) = (
        emulated_image_convolution.launches(kernel, many, resident) for resident in (528, 100_000)
    )
    assert (first, launch.blocks) == (0, 528) and few.blocks == 32 * 7 * 7
    assert emulated_image_convolution.launches(kernel, STEM, aligned=8)[1][0].plain
    assert not launch.plain


def test_the_entry_point_of_float32_goes_by_the_option_and_the_gpu() -> None:
    (kernel,) = fused(dataclasses.replace(STEM, dtype="float32", appended=0)).kernels
    case = dataclasses.replace(STEM, dtype="float32", appended=0)
    chosen = {}
    for tf32, shared in itertools.product((True, False), (227 << 10, 64 << 10)):
        first, _ = emulated_image_convolution.launches(kernel, case, shared=shared, tf32=tf32)
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
    first, (launch,) = emulated_image_convolution.launches(kernel, dataclasses.replace(STEM, x=x))
    assert (first == 0) is runs and (launch.blocks > 0) is runs

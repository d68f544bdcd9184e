"""Squeeze-excites of the CUDA text, run on the CPU by g++ through the library's own launches, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.squeeze_excite import Case, fused, worst
from onnxopt.fusion.region import Kernel
from tests.support.emulation import emulated_library
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")


def _launched(folder: Path, cases: list[Case], major: int = 8, kernel: Kernel | None = None) -> set[str]:
    """Run one kernel for cases that differ in their batch, height and width alone; the entry points that ran."""
    found = fused(dataclasses.replace(cases[0], known=False))
    kernels = found.kernels if kernel is None else [kernel]
    feeds = [case.feeds() for case in cases]
    optimized = with_wrong_bodies(found.optimized) if len(found.kernels) == 1 else found.optimized
    results, symbols = emulated_library.run(folder, optimized, kernels, feeds, major)
    for case, feed, result in zip(cases, feeds, results, strict=True):
        assert (error := worst(case, result, case.expected(feed))) <= 1, (case, error)
    return {s.removeprefix(f"{found.kernel.name}_") for s in symbols}


def _sizes(case: Case, *sizes: tuple[int, int, int]) -> list[Case]:
    return [dataclasses.replace(case, x=(*size, case.channels)) for size in sizes]


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        (Case((1, 1, 1, 37), 7), ((2, 9, 11), (1, 1, 1), (3, 20, 5))),
        (Case((1, 1, 1, 8), 2, "float16", in_front=True), ((2, 8, 8), (5, 3, 17))),
        (Case((1, 1, 1, 40), 10, "bfloat16", 5, 2, activation="relu", gate="hardsigmoid"), ((2, 9, 13), (1, 5, 5))),
        (Case((1, 1, 1, 72), 24, "float16", activation="hardswish", gate="spelled", bias=False), ((3, 6, 5),)),
        (Case((1, 1, 1, 600), 100, activation="relu"), ((1, 3, 4),)),  # more hidden channels than warps, more vectors
        (Case((1, 1, 1, 1152), 48, "float16"), ((2, 7, 7),)),
        (Case((1, 1, 1, 96), 4, "float16", 3, 2, narrow=16), ((2, 17, 19), (1, 2, 3))),
        (Case((1, 1, 1, 144), 6, "bfloat16", 5, narrow=24), ((2, 9, 11), (3, 5, 7))),
    ],
    ids=str,
)
def test_the_map_and_the_factors(case: Case, sizes: tuple[tuple[int, int, int], ...], tmp_path: Path) -> None:
    launched = _launched(tmp_path / "run", _sizes(case, *sizes))
    assert "rows1" in launched and any(s.startswith("map_") for s in launched)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_many_rows_share_the_weights(dtype: str, tmp_path: Path) -> None:
    """From more rows than the GPU has multiprocessors; 110 and 113 leave three and one for the last block."""
    assert "rows4" in _launched(tmp_path / "run", _sizes(Case((1, 1, 1, 12), 5, dtype), (110, 2, 3), (113, 1, 1)))


def test_the_sums_of_many_tiles_are_folded_ahead(tmp_path: Path) -> None:
    launched = _launched(tmp_path / "run", _sizes(Case((1, 1, 1, 301), 6, kernel=1), (1, 104, 28), (2, 4, 4)))
    assert {"fold", "rows1"} <= launched


@pytest.mark.parametrize("form", ["conv", "gemm", "matmul"])
def test_without_a_convolution(form: str, tmp_path: Path) -> None:
    """The mean is a kernel of another kind; the products read its result."""
    for dtype, channels, hidden in (("float32", 33, 9), ("float32", 64, 16)):
        case = Case((1, 1, 1, channels), hidden, dtype, depthwise=False, form=form, activation="relu")
        launched = _launched(tmp_path / str(channels), _sizes(case, (2, 5, 5), (120, 2, 2)))
        assert {"rows1", "rows4"} <= launched


@pytest.mark.parametrize(
    "case",
    [
        Case((3, 18, 19, 40), 10, "float16", 5), Case((3, 5, 7, 24), 6, "bfloat16", 5),
        Case((1, 20, 33, 8), 3, "float16", 7), Case((2, 9, 9, 48), 12, "float16", 3, in_front=True),
    ],
    ids=str,
)  # fmt: skip
def test_sums_of_tiles_on_tensor_cores(case: Case, tmp_path: Path) -> None:
    """Every entry point of the convolution that a GPU of compute capability 9.0 has for any width."""
    kernel = fused(dataclasses.replace(case, known=False)).kernel
    products, of_map = kernel.variants[:3], kernel.variants[3:]
    banded = [v for v in of_map if getattr(v, "layout", "") == "banded"]
    assert banded
    for number, variant in enumerate(banded):
        only = dataclasses.replace(kernel, variants=(*products, variant))
        assert f"{variant.symbol.removeprefix(f'{kernel.name}_')}" in _launched(tmp_path / str(number), [case], 9, only)


def test_an_infinity_spoils_the_factors_of_its_image_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile on tensor cores is then computed again without products, and so are its sums."""
    case = Case((3, 18, 19, 16), 4, "float16", 5, activation="relu", known=False)
    found = fused(case)
    clean = case.feeds()
    spoiled = {"t": clean["t"].copy()}
    spoiled["t"][1, 3, 4, 2] = np.inf
    (first, second), _ = emulated_library.run(tmp_path / "run", found.optimized, found.kernels, [clean, spoiled], 9)
    others = [0, 2]
    assert np.array_equal(first["f"][others], second["f"][others])
    assert not np.array_equal(first["f"][1], second["f"][1], equal_nan=True)
    apart = np.delete(np.arange(16), 2)
    assert np.array_equal(first["v"][..., apart], second["v"][..., apart])

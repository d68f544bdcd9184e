"""Squeeze-excites whose convolution runs on tensor cores, on the CPU by g++; cases/ has the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.squeeze_excite import Case, fused, worst
from tests.support.emulation import emulated_library
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")


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
    found = fused(dataclasses.replace(case, known=False))
    kernel, optimized = found.kernel, with_wrong_bodies(found.optimized)
    products, of_map = kernel.variants[:3], kernel.variants[3:]
    banded = [v for v in of_map if getattr(v, "layout", "") == "banded"]
    assert banded
    every = [dataclasses.replace(kernel, variants=(*products, *banded))]
    for number, variant in enumerate(banded):
        only = dataclasses.replace(kernel, variants=(*products, variant))
        feeds = case.feeds()
        (result,), symbols = emulated_library.run(tmp_path / str(number), optimized, [only], [feeds], 9, compiled=every)
        assert variant.symbol in symbols
        assert (error := worst(case, result, case.expected(feeds))) <= 1, (case, error)


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

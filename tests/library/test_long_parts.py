"""Parts of a Concat or Pad that are longer than the blocks in which the CPU kernel works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.kinds import rowwise_models

pytestmark = pytest.mark.usefixtures("library")
# The second operand of this Mod is kept as an array behind the memory of the parts: what is written beyond them shows.
_AFTER = "m = Mod<fmod = 1>(r, three)  e = Exp(m)  y = Mod<fmod = 1>(e, five)"
_CONSTANTS = "float three = {3.5}, float five = {1.25}"


@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("widths", [(3000, 1000), (1000, 3000), (700, 1), (1, 700), (30000, 10000)])
def test_concat(widths: tuple[int, int], rows: int, tmp_path: Path) -> None:
    found = rowwise_models.fused(
        f"float[n, {widths[0]}] a, float[n, {widths[1]}] b", f"float[n, {sum(widths)}] y",
        f"r = Concat<axis = 1>(a, b)  {_AFTER}", constants=_CONSTANTS,
    )  # fmt: skip
    assert [len(k.ops) for k in found.kernels] == [4]
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((rows, n)).astype(np.float32) for name, n in zip("ab", widths, strict=True)}
    (y,) = rowwise_models.with_library(found, tmp_path).run(None, feeds)
    (expected,) = rowwise_models.session(found.original).run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("before", [0, 700, 3000])
@pytest.mark.parametrize("behind", [5, 2500])
def test_pad(before: int, behind: int, tmp_path: Path) -> None:
    found = rowwise_models.fused(
        "float[n, 900] x", f"float[n, {900 + before + behind}] y", f"s = Neg(x)  r = Pad(s, pads, fill)  {_AFTER}",
        constants=f"{_CONSTANTS}, float fill = {{3.5}}, int64[4] pads = {{0, {before}, 0, {behind}}}",
    )  # fmt: skip
    assert [len(k.ops) for k in found.kernels] == [5]
    feeds = {"x": np.random.default_rng(0).standard_normal((7, 900)).astype(np.float32)}
    (y,) = rowwise_models.with_library(found, tmp_path).run(None, feeds)
    (expected,) = rowwise_models.session(found.original).run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)

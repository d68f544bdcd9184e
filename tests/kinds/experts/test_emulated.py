"""Mixtures of experts that are called with ids of no expert, on the CPU by g++; cases/ has the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases.experts import Case, fused
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.emulation import emulated_library

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("tokens", [2, 40])
def test_an_id_of_no_expert_counts_as_the_nearest(tokens: int, tmp_path: Path) -> None:
    """No weight is read that is not there."""
    case = Case(tokens, 4, 2, 16, 8)
    (kernel,) = fused(case).kernels
    first, second = case.weights()
    rng = np.random.default_rng(tokens)
    ids = rng.integers(-9, 12, (tokens, case.chosen))
    arrays = [case.feeds()["x"], ids, rng.random((tokens, case.chosen), np.float32), first, second]
    inputs = [(dtype, list(a.shape)) for dtype, a in zip(kernel.program.inputs, arrays, strict=True)]
    model = artifact.model(artifact.wrong_body("float32"), inputs, [("float32", None)], name=kernel.name)
    given = {f"x{k}": array for k, array in enumerate(arrays)}
    nearest = {**given, "x1": np.clip(ids, 0, case.experts - 1)}
    (found, expected), _ = emulated_library.run(tmp_path / "run", model, [kernel], [given, nearest])
    assert np.isfinite(expected["y0"]).all()
    np.testing.assert_array_equal(found["y0"], expected["y0"])

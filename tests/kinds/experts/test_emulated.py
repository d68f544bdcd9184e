"""Mixtures of experts of the CUDA text, run on the CPU by g++ through the library's own launches, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.experts import Case, fused
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.emulation import emulated_library
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")

FEW = {"first16", "second16", "join"}
SEVERAL = {"first32", "second32", "join"}
SOME = {"route64", "first64", "second64", "join"}
MANY = {"route128", "first128", "second128", "join"}


def _launched(folder: Path, case: Case, *feeds: dict[str, np.ndarray]) -> set[str]:
    """Run one session over these feeds; the entry points that ran."""
    found = fused(case)
    (kernel,) = found.kernels
    results, symbols = emulated_library.run(folder, with_wrong_bodies(found.optimized), [kernel], feeds)
    for feed, result in zip(feeds, results, strict=True):
        of = dataclasses.replace(case, tokens=len(feed["x"]))
        assert (error := of.worst(result["y"], of.expected(feed))) <= 1, (of, error)
    return {s.removeprefix(f"{kernel.name}_") for s in symbols}


@pytest.mark.parametrize(("dtype", "activation"), [("float32", "silu"), ("float16", "gelu")])
def test_few_tokens(dtype: str, activation: str, tmp_path: Path) -> None:
    case = Case(1, 4, 2, 72, 40, dtype, activation)
    feeds = [dataclasses.replace(case, tokens=t).feeds() for t in (1, 2, 16)]
    feeds[2]["scores"][:, :2] += 100  # all tokens choose the same two experts
    assert _launched(tmp_path / "run", case, *feeds) == FEW


def test_more_tokens_take_larger_tiles(tmp_path: Path) -> None:
    """17 tokens: an expert with more rows than 16. 40 and 150: more rows than a tile has, and experts with few."""
    case = Case(17, 3, 2, 40, 24, "float16")
    feeds = [dataclasses.replace(case, tokens=tokens).feeds() for tokens in (17, 40, 150)]
    for given in feeds:
        given["scores"][:, 1] += 100
    assert _launched(tmp_path / "run", case, *feeds) == SEVERAL | SOME | MANY


@pytest.mark.parametrize(
    "case", [Case(2, 4, 2, 1096, 8, "float16"), Case(2, 4, 2, 8, 1032, "float32", "squared")], ids=str
)
def test_blocks_share_a_depth(case: Case, tmp_path: Path) -> None:
    """Where columns and rows give few blocks; the last of a depth's parts is shorter."""
    assert _launched(tmp_path / "run", case, case.feeds()) == (FEW | {"activate"} if case.gated else FEW)


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 3, 2, 40, 72, "bfloat16", "clamped", wide=False, biased=True, interleaved=True),
        Case(2, 3, 2, 1096, 8, "float32", "clamped", biased=True, interleaved=True),
    ],
    ids=str,
)
def test_biases_and_gates_in_neighbouring_columns(case: Case, tmp_path: Path) -> None:
    """In tiles of few rows and of many, without tensor cores too, and where the depth is split."""
    feeds = [dataclasses.replace(case, tokens=tokens).feeds() for tokens in (2, 40)]
    split = {"activate"} if case.columns > case.hidden else set()
    assert _launched(tmp_path / "run", case, *feeds) == FEW | SOME | split


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

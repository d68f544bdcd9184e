"""A fixed handful of the random graphs of tests/fuzz.py; `make fuzz` runs many more."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest

SEEDS = range(16)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(seed: int, tmp_path: Path, library: Path) -> None:
    problem, _ = fuzz.examine(seed, tmp_path)
    assert problem is None


def test_random_graphs_are_fused(tmp_path: Path, library: Path) -> None:
    """Guards the test above: were nothing fused, it would compare models with themselves."""
    assert sum(fuzz.examine(seed, tmp_path)[1] for seed in SEEDS[:6]) >= 6


def test_equal_seeds_give_equal_graphs() -> None:
    assert fuzz.Graph(3).model().SerializeToString() == fuzz.Graph(3).model().SerializeToString()

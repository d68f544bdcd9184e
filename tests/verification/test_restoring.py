"""Which nodes go back to float32: culprits, the noisiest where noise adds up, and none where half do not help."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

import pytest

from onnxopt.verification.lowering import restoring
from onnxopt.verification.lowering.goals import Goals, Quality


@dataclasses.dataclass(frozen=True)
class _Found:
    restored: tuple[str, ...]
    narrow: int
    quality: tuple[Quality, ...]


class _Trials:
    """Models whose noise is the sum of their nodes' noise. kept: those whose files are there. count: of all."""

    def __init__(self, noise: Mapping[str, float]) -> None:
        self.noise, self.kept, self.count = noise, list[_Found](), 0

    def run(self, restored: Collection[str], /, until: Goals | None = None) -> _Found:
        self.count += 1
        left = [name for name in self.noise if name not in set(restored)]
        noise = sum(self.noise[name] for name in left)
        decibels = None if noise == 0 else -10 * math.log10(noise)
        found = _Found(tuple(restored), len(left), (Quality("P", False, "y", 1, decibels, None, None),))
        self.kept.append(found)
        return found

    def discard(self, found: _Found, /) -> None:
        self.kept.remove(found)


@pytest.mark.parametrize(
    ("noise", "goal", "wanted"),
    [
        ({f"n{k}": 1e-6 for k in range(20)}, 40.0, set()),  # near enough at once
        ({f"n{k}": 1e-6 for k in range(20)} | {"bad": 0.1}, 40.0, {"bad"}),
        ({f"n{k}": 1e-6 for k in range(20)} | {"bad": 0.1, "worse": 0.3}, 40.0, {"bad", "worse"}),
        ({f"n{k}": 1e-5 * (k + 1) for k in range(20)}, 28.0, {"n19", "n18", "n17", "n16"}),  # a sum; no node alone
        ({f"n{k}": 1e-3 for k in range(20)}, 40.0, set()),  # half would not do
    ],
)
def test_what_goes_back(noise: dict[str, float], goal: float, wanted: set[str]) -> None:
    trials = _Trials(noise)
    found = restoring.restored(trials, trials.run(()), list(noise), noise.__getitem__, Goals(min_sqnr=goal), seconds=30)
    assert set(found.restored) == wanted
    assert trials.kept == [found]  # every other model's files are gone


@pytest.mark.parametrize(
    ("noise", "goal", "count"),
    [
        ([1e-6] * 99 + [0.1], 40.0, 1 + 14 + 1),  # halves of 100, 50, 25, 12, 6, 3 and 2 nodes; then without the one
        ([1.0] * 640, 20.0, 1 + 10 + 1),  # all at fault: known from a few groups, and that half do not help
        ([1e-5] * 640, 24.0, 1 + 2 + 9),  # neither half alone; 256 of them help, and fewer do not: 1, 2, 4, ... 128
    ],
)
def test_how_many_models_it_takes(noise: list[float], goal: float, count: int) -> None:
    trials = _Trials({f"n{k}": each for k, each in enumerate(noise)})
    names = list(trials.noise)
    restoring.restored(trials, trials.run(()), names, trials.noise.__getitem__, Goals(min_sqnr=goal), seconds=30)
    assert trials.count == count


@pytest.mark.parametrize(
    ("pending", "most", "needed"),
    [
        ([64], 64, 2),  # neither half fails
        ([64], 4, 2 * 4 + 2),  # halves of 64, 32, 16 and 8; then neither of 4
        ([64], 1, 2 * 6),
        ([3, 5], 3, 2 * 2 + 2),  # 2 of the 5, then 1; 1 of the 3 would do as well
        ([1, 1, 1], 2, float("inf")),
        ([], 0, 0),
    ],
)
def test_how_many_trials_a_search_needs(pending: list[int], most: float, needed: float) -> None:
    assert restoring._trials_needed(pending, most) == needed

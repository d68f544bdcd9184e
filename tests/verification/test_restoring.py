"""Which nodes go back to float32: culprits, the noisiest where noise adds up, and none where half do not help."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

import pytest

from onnxopt.verification.lowering import restoring
from onnxopt.verification.lowering.quality import Goals, Quality


@dataclasses.dataclass(frozen=True)
class _Found:
    restored: tuple[str, ...]
    narrow: int
    quality: tuple[Quality, ...]


class _Trials:
    """Models whose noise is the sum of their nodes' noise. kept: those whose files are there."""

    def __init__(self, noise: Mapping[str, float]) -> None:
        self.noise, self.kept = noise, list[_Found]()

    def run(self, restored: Collection[str], /) -> _Found:
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
    found = restoring.restored(trials, trials.run(()), list(noise), noise.__getitem__, Goals(min_sqnr=goal))
    assert set(found.restored) == wanted
    assert trials.kept == [found]  # every other model's files are gone

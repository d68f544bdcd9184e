"""What a table of cases holds: rows of a kind, each with what its cases have to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cases.models import Fused

INF, NAN = float("inf"), float("nan")


@dataclasses.dataclass(frozen=True)
class Row:
    """Cases whose kernels are compiled together.

    entry_points: beginnings of names, of which each is an entry point that some case runs. alone: nothing else runs.
    every: also those that `tune` measures. aligned: bytes that the addresses of inputs and results are multiples of.
    changed: elements of inputs, by name and index, for all cases. without_products: as on a GPU that has no products of
    the dtype. exhaustive: more of what another row samples. gpu: for GPUs alone. major: of the only compute capability
    whose GPUs run them, 0 for any.
    """

    name: str
    cases: tuple[Any, ...]
    entry_points: tuple[str, ...] = ()
    alone: bool = False
    every: bool = False
    aligned: int = 256
    changed: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    without_products: bool = False
    exhaustive: bool = False
    gpu: bool = False
    major: int = 0

    def feeds(self, case: Any) -> dict[str, np.ndarray]:
        """The case's inputs, with the elements that the row changes."""
        feeds: dict[str, np.ndarray] = case.feeds()
        for name, index, value in self.changed:
            feeds[name][index] = value
        return feeds


@dataclasses.dataclass(frozen=True)
class Table:
    """The cases of a kind.

    error: a result's largest error in units of its limit, from the case, the entry point's name without the kernel's,
    the result (all outputs by name, where the case expects such) and the one in float64. emulated: how
    tests/kinds/test_cases.py runs rows without a GPU: each entry point by its "launches", or as the library does in
    "sessions"; "" for not at all. single: whether one entry point runs a call. damaged: by name, cases of one model in
    several sizes, whose kernels.json tests/fuzz/library damages.
    """

    kind: str
    rows: tuple[Row, ...]
    fused: Callable[[Any], Fused]
    error: Callable[[Any, str, Any, Any], float]
    emulated: str = "launches"
    single: bool = True
    damaged: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def worst(self, case: Any, outputs: Mapping[str, np.ndarray], expected: Any) -> float:
        """The error of what a session gives, whose products are of float32 where the case is."""
        (first, *_) = outputs.values()
        return self.error(case, "x", outputs if isinstance(expected, dict) else first, expected)

"""A sample of a matrix of cases for every run; the rest is marked `exhaustive`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def pairs(cases: Iterable[Sequence[Any]]) -> list[Any]:
    """For pytest.mark.parametrize: cases that have every pair of two parameters' values run, in their order."""
    return _sampled(list(cases), 2)


def values(cases: Iterable[Sequence[Any]]) -> list[Any]:
    """As `pairs`, for cases that have every value of each parameter."""
    return _sampled(list(cases), 1)


def _sampled(cases: Sequence[Sequence[Any]], strength: int) -> list[Any]:
    """Greedily, the case that has most of what no earlier one has."""
    has = [set(itertools.combinations([(k, repr(x)) for k, x in enumerate(case)], strength)) for case in cases]
    missing, chosen = set[Any]().union(*has), set[int]()
    while missing:
        best = max(range(len(cases)), key=lambda k: len(has[k] & missing))
        chosen.add(best)
        missing -= has[best]
    return [pytest.param(*case, marks=() if k in chosen else pytest.mark.exhaustive) for k, case in enumerate(cases)]

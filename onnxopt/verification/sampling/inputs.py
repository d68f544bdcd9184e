"""The inputs of cases, drawn or the user's: every time those that a case's outputs belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxopt.graph.traits import Traits
from onnxopt.verification.sampling import cases, samples
from onnxopt.verification.sampling.cases import Case
from onnxopt.verification.sampling.user_data import UserData

_MAX_HELD = 64 << 20  # bytes of drawn inputs that are kept, so that they are drawn once

Feeds = dict[str, Any]


class Inputs:
    """data: the user's inputs, for cases that name them."""

    def __init__(self, traits: Traits, data: Sequence[UserData]) -> None:
        self._traits = traits
        self._data: Mapping[str, Mapping[str, Any]] = {item.name: item.inputs for item in data}
        self._digests: dict[Case, str] = {}
        self._drawn: dict[Case, Feeds] = {}
        self._room = _MAX_HELD

    def of(self, case: Case) -> Feeds:
        """The inputs of a case, by name."""
        if case in self._drawn:
            return dict(self._drawn[case])
        if case.data:
            drawn = dict(self._data[case.data])
        else:
            traits = self._traits
            drawn = samples.draw(
                traits.inputs, dict(case.sizes), case.seed, traits.uses, case.kind, frozenset(traits.nan_hazards)
            )
        digest = cases.digest(drawn)
        if self._digests.setdefault(case, digest) != digest:
            raise RuntimeError(f"the inputs of {case} are others than those that the original got")
        size = 0 if case.data else samples.bytes_of(self._traits.inputs, dict(case.sizes))
        if not case.data and size <= self._room:
            self._room -= size
            self._drawn[case] = dict(drawn)
        return drawn

    def digest(self, case: Case) -> str:
        """Of the inputs that a case was given."""
        return self._digests[case]

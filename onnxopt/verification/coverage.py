"""What a reference is made of: the original's file, and how much of it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.graph import signature
from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.verification.sampling.user_data import UserData


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """The model that others are compared with. bytes: with external data. library: its own, if it is an artifact."""

    path: Path
    traits: Traits
    bytes: int = 0
    library: Path | None = None

    def pinned(self, shapes: Mapping[str, tuple[int, ...]] | None) -> Sizes:
        """Sizes of its symbols that the user's shapes fix. UsageError where they do not fit."""
        return signature.pin(self.traits.inputs, shapes or {}, self.traits.checked)


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Which cases a reference runs.

    pinned: sizes of symbols that all cases have. data: the user's inputs; where there are any, no others are drawn, and
    the original must accept them all. seconds: how long the original may run on a provider before no more cases are
    added. search: try other shapes where the usual ones fail. edge_cases: also draw edges of what inputs may hold, and
    great and empty sizes (verification/sampling/edges.py).
    """

    pinned: Sizes = dataclasses.field(default_factory=dict)
    data: Sequence[UserData] = ()
    seconds: float = 1.0
    search: bool = True
    edge_cases: bool = False

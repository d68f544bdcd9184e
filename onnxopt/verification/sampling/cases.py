"""Cases: the sizes and seeds at which the original runs, or the user's inputs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onnxopt.graph import signature
from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.verification.sampling import flags, samples

SEEDS = (0, 1, 2)
_LARGEST_INPUTS = 1 << 29  # bytes


@dataclasses.dataclass(frozen=True)
class Case:
    """One run: the sizes of the symbols, and the seed that inputs are drawn with, or the name of the user's inputs.

    kind: of verification/sampling/edges.py, "" for random noise at usual sizes.
    """

    sizes: tuple[tuple[str, int], ...]
    seed: int
    data: str = ""
    kind: str = ""

    def __str__(self) -> str:
        source = f"data {self.data}" if self.data else f"seed {self.seed}"
        kind = f", {self.kind}" if self.kind else ""
        return f"{signature.describe(dict(self.sizes))}{kind}, {source}"


def seeds_of_kinds(traits: Traits) -> tuple[int, ...]:
    """The seeds that kinds of values, and sizes far from usual ones, are tried at: one for each value of flags."""
    return SEEDS[:2] if flags.numbers(traits.inputs, traits.uses) else SEEDS[:1]


def usual(traits: Traits, pinned: Sizes) -> list[Sizes]:
    """The sizes that are tried first, in order."""
    return unique(samples.fitted(traits.inputs, sizes, pinned) for sizes in samples.usual_sizes(traits.inputs))


def unique(all_sizes: Iterable[Sizes]) -> list[Sizes]:
    """The sizes in their order, each once."""
    return [dict(items) for items in dict.fromkeys(tuple(s.items()) for s in all_sizes)]


def why_not(traits: Traits, case: Case) -> str:
    """Why a case is not tried, "" where it is."""
    needed = 0 if case.data else samples.bytes_of(traits.inputs, dict(case.sizes))
    if needed <= _LARGEST_INPUTS:
        return ""
    return f"its inputs would take {needed:,} bytes; at most {_LARGEST_INPUTS:,} are tried"


def digest(feeds: Mapping[str, Any]) -> str:
    """Of inputs by name: equal where names, dtypes, shapes and all bits are equal. A sequence is a list of arrays."""
    hashed = hashlib.blake2b(digest_size=16)
    for name, value in sorted(feeds.items()):
        arrays = value if isinstance(value, list) else [value]
        for array in map(np.asarray, arrays):
            hashed.update(f"{name} {len(arrays)} {array.dtype} {array.shape} ".encode())
            is_text = array.dtype == object
            hashed.update(repr(array.tolist()).encode() if is_text else np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()

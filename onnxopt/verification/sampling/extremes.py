"""Inputs far from typical ones: zeros, the longest that the original takes, and empty axes.

Ranges are measured with them too. They say how large and how small values get; what rounding costs is asked of typical
inputs alone, as noise in place of zeros would lose everything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph.signature import Sizes
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.lowering import parts
from onnxopt.verification.reference import Reference
from onnxopt.verification.sampling import cases, edges, samples
from onnxopt.verification.sampling.cases import Case

_SECONDS = 0.5  # that the run of the original at the greatest length may take
_GROWTH = 4.0  # of the time from one length to the next
_LARGEST = 1 << 28  # bytes of all values of a model at the greatest length
_TIMES_WEIGHTS = 4  # of the bytes of its weights, where that is more
Feeds = Mapping[str, Any]


def extremes(model: ir.Model, reference: Reference, pinned: Sizes) -> list[Feeds]:
    """Such inputs that the original takes; zeros alone in place of the user's inputs, whose sizes are the user's.

    model: normalized, with known shapes; it stays as it is. pinned: sizes that the user gave. None of models that draw
    random numbers, or that can end the process.
    """
    traits = reference.traits
    if traits.random or traits.traps:
        return []
    session = reference.open(reference.model, library=reference.library)
    firsts = {case.seed: case for case in reversed(reference.outputs)}  # the first of each seed
    result: list[Feeds] = []
    for first in (firsts[seed] for seed in cases.seeds_of_kinds(traits) if seed in firsts):
        tried = [_zeros(reference.feeds(first))]
        if not first.data:
            empty = edges.empty_sizes(traits, dict(first.sizes))
            tried += [_drawn(reference, sizes, pinned, edges.EMPTY, first.seed) for sizes in empty]
        result += [feeds for feeds in tried if _run(session, feeds) is not None]
        result += [] if first.data else _longest(model, reference, session, pinned, first.seed)
    return result


def refused_empty(reference: Reference) -> frozenset[frozenset[str]]:
    """The symbols that the original refuses where they are 0 together. None of models that `extremes` does not run."""
    traits, first = reference.traits, next(iter(reference.outputs))
    if traits.random or traits.traps or first.data:
        return frozenset()
    empty = list(edges.empty_sizes(traits, dict(first.sizes)))
    session = reference.open(reference.model, library=reference.library) if empty else None
    refused = set()
    for sizes in empty:
        if _run(session, _drawn(reference, sizes, {}, edges.EMPTY, first.seed)) is None:
            refused.add(frozenset(name for name, size in sizes.items() if size == 0))
    return frozenset(refused)


def _longest(model: ir.Model, reference: Reference, session: Any, pinned: Sizes, seed: int) -> Iterator[Feeds]:
    """The longest inputs that the original takes, in the time and memory that there is."""
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    largest = max(_LARGEST, _TIMES_WEIGHTS * weights)
    longest: Feeds | None = None
    for _, sizes in edges.long_sizes(reference.traits, pinned):
        if cases.why_not(reference.traits, Case(tuple(sizes.items()), seed)):
            break
        feeds = _drawn(reference, sizes, pinned, edges.LONG, seed)
        seconds = _run(session, feeds) if parts.bytes_of(model, feeds) <= largest else None
        if seconds is None:
            break
        longest = feeds
        if seconds * _GROWTH > _SECONDS:
            break
    if longest is not None:
        yield longest


def _drawn(reference: Reference, sizes: Sizes, pinned: Sizes, kind: str, seed: int) -> Feeds:
    traits = reference.traits
    return samples.draw(traits.inputs, samples.fitted(traits.inputs, sizes, pinned), seed, traits.uses, kind)


def _zeros(feeds: Feeds) -> Feeds:
    """The inputs with zeros in place of floats."""
    return {name: np.zeros_like(a) if getattr(a, "dtype", None) == np.float32 else a for name, a in feeds.items()}


def _run(session: Any, feeds: Feeds) -> float | None:
    """How many seconds a run takes; None where ONNX Runtime refuses the inputs."""
    before = time.monotonic()
    try:
        sessions.run(session, feeds)
    except RunError:
        return None
    return time.monotonic() - before

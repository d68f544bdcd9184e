"""Limits of one kernel, and what may be computed again."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class FusionCosts:
    """The numbers of costs/data/fusion.json, which says what each is."""

    max_recomputed_cost: int
    max_operands: int
    max_nodes: int
    tiny_bytes: int
    max_cost: int
    min_gathered: int


@functools.cache
def numbers() -> FusionCosts:
    """The measured numbers."""
    return load("fusion", FusionCosts)

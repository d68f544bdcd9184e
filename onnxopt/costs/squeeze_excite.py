"""Up to which size two small products are faster as one kernel."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class SqueezeExciteCosts:
    """The numbers of costs/data/squeeze_excite.json, which says what each is."""

    max_weight_bytes: int
    max_alone_bytes: int
    max_products: int
    rows: tuple[int, ...]
    threads: int
    max_read: int
    fold_bytes: int


@functools.cache
def numbers() -> SqueezeExciteCosts:
    """The measured numbers."""
    return load("squeeze_excite", SqueezeExciteCosts)

"""What a layout costs a convolution."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class LayoutCosts:
    """The numbers of costs/data/layout.json, which says what each is."""

    symbolic: int
    unknown_bytes: int
    lost_by_nchw: int
    gated_columns: tuple[int, int]
    moved_alone: tuple[str, ...]
    image_channels: int
    max_added_channels: float


@functools.cache
def numbers() -> LayoutCosts:
    """The measured numbers."""
    return load("layout", LayoutCosts)

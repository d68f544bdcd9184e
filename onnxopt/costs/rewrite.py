"""Up to which sizes a rewritten form is faster."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class RewriteCosts:
    """The numbers of costs/data/rewrite.json, which says what each is."""

    max_attention_bytes: Mapping[int, int]
    grouped_float16: bool
    split_is_fused: bool
    min_transposed: int
    min_transposed_float32: int
    min_padded: tuple[int, int]
    min_sliced: tuple[int, int]
    max_merged_bytes: int
    max_divided_bytes: int
    expected_share: int
    padded_length: int
    passes_of_scores: int
    min_float8_side: int
    rows_as_floats: tuple[int, int]
    operations_per_byte: int
    min_saved_of_repeated: int
    max_short_axis: int
    min_after_short_axis: int


@functools.cache
def numbers() -> RewriteCosts:
    """The measured numbers."""
    return load("rewrite", RewriteCosts)

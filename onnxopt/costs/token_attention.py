"""The launch shapes of attention of few tokens to a cache."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class TokenAttentionCosts:
    """The numbers of costs/data/token_attention.json, which says what each is."""

    lanes: int
    max_rows_of_lanes: int
    tiles: tuple[tuple[int, int], ...]
    tiles_of_codes: tuple[tuple[int, int], ...]
    codes_lanes: tuple[tuple[int, int, int], ...]
    masked_codes_lanes: tuple[tuple[int, int, int], ...]
    in_registers: tuple[int, int]
    rows_in_registers: int
    joining_threads: int
    blocks_of_tiles: int
    blocks_of_lanes: int
    few_rows: int
    few_rows_apart: int
    long_bytes: int


@functools.cache
def numbers() -> TokenAttentionCosts:
    """The measured numbers."""
    return load("token_attention", TokenAttentionCosts)

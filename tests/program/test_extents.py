"""Sums of extents: what is added up, and what holds for all sizes of the symbols."""

from __future__ import annotations

import pytest

from onnxopt.program.extents import ZERO, Extent, Sum, total

N, M = Extent(1, ("n",)), Extent(1, ("m",))


@pytest.mark.parametrize(
    ("summed", "parts"),
    [
        (total(N) + N * 3 - 2, {(): -2, ("n",): 4}),
        (total(N * M) - N * M, {}),
        (ZERO + 5 - 5, {}),
        ((total(N) - M) * -2, {("n",): -2, ("m",): 2}),
    ],
)
def test_equal_symbols_are_one_part(summed: Sum, parts: dict[tuple[str, ...], int]) -> None:
    assert {part.symbols: part.factor for part in summed.parts} == parts
    assert bool(summed) == bool(parts)


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (total(N) - 1, True),
        (total(N) - 2, False),
        (total(N * 8) - 8, True),
        (total(N * M) + N - 2, True),
        (total(N) - M, False),
        (total(N * M) - N, False),
        (total(-1), False),
        (ZERO, True),
    ],
)
def test_not_negative_holds_where_every_symbol_is_1_or_more(value: Sum, holds: bool) -> None:
    assert value.not_negative() == holds

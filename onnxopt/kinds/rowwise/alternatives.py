"""Further entry points of a rowwise kernel, for `tune` to measure: the rule's choices with other launch shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from onnxopt.costs.tuning import numbers
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.rowwise.entry_points import RowVariant


def alternatives(kernel: Kernel) -> Iterator[RowVariant]:
    """The first entry points for known row lengths, with twice and half as many threads per row and per block."""
    rows = [v for v in kernel.variants if isinstance(v, RowVariant)]
    held = [v for v in rows if v.layout == "held" and v.columns and v.cluster == 1]
    for variant in held[: numbers().entry_points]:
        yield from _of(variant)


def _of(variant: RowVariant) -> Iterator[RowVariant]:
    (low, high), elements = numbers().row_threads, numbers().row_elements
    vectors = -(-variant.columns // variant.vector)
    for lanes in (variant.lanes // 2, variant.lanes, variant.lanes * 2):
        unroll = -(-vectors // max(lanes, 1))
        fits = 1 <= lanes <= high and unroll * variant.vector <= elements and lanes * (unroll - 1) < vectors
        for threads in (variant.threads // 2, variant.threads, variant.threads * 2):
            whole = threads % 32 == 0 and low <= threads <= high and threads % max(lanes, 1) == 0
            if fits and whole and (lanes, threads) != (variant.lanes, variant.threads):
                symbol = f"{variant.symbol}_u{unroll}l{lanes}t{threads}"
                yield dataclasses.replace(variant, symbol=symbol, unroll=unroll, threads=threads, lanes=lanes)

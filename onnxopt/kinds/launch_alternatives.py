"""Further entry points of a kernel, for `tune` to measure: the rule's choices with other launch shapes.

They come behind every other variant, the general ones among them, so that no rule ever takes one: the library runs one
only where launches.json beside it says that it was measured to be faster on this GPU (custom_ops/launch_choices.h).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from onnxopt.fusion.regions import Kernel, Kind, Variant
from onnxopt.kinds.rowwise.entry_points import RowVariant
from onnxopt.program.hardware import WARP

_MOST_SPECIAL = 2  # variants that others are made of, the most frequent ones
_UNROLLS, _THREADS = (1, 2, 4), (128, 256)
_MOST_ELEMENTS = 32  # of a row that a thread holds in registers


def added(kernel: Kernel) -> Kernel:
    """The kernel with its alternatives; its own variants and their order stay."""
    if kernel.kind in (Kind.GEMM, Kind.ATTENTION, Kind.SCAN):
        return kernel
    found: dict[str, Variant] = {}
    for variant in _special(kernel):
        for other in _of_rows(variant) if isinstance(variant, RowVariant) else _of_elements(variant):
            found[other.symbol] = other
    return dataclasses.replace(kernel, variants=(*kernel.variants, *found.values()))


def _special(kernel: Kernel) -> list[Variant]:
    """Variants for shapes that were foreseen, which are those that mostly run."""
    rows = [v for v in kernel.variants if isinstance(v, RowVariant)]
    chosen: list[Variant] = [v for v in rows if v.layout == "held" and v.columns and v.cluster == 1]
    chosen += [v for v in kernel.variants if v not in rows and not set("*X") & set(v.modes)]
    return chosen[:_MOST_SPECIAL]


def _of_elements(variant: Variant) -> Iterator[Variant]:
    for unroll in _UNROLLS:
        for threads in _THREADS:
            if (unroll, threads) != (variant.unroll, variant.threads):
                symbol = f"{variant.symbol}_u{unroll}t{threads}"
                yield dataclasses.replace(variant, symbol=symbol, unroll=unroll, threads=threads)


def _of_rows(variant: RowVariant) -> Iterator[RowVariant]:
    """Twice and half as many threads a row, and blocks of as many warps as before or half or twice as many."""
    vectors = -(-variant.columns // variant.vector)
    for lanes in (variant.lanes // 2, variant.lanes, variant.lanes * 2):
        unroll = -(-vectors // max(lanes, 1))
        fits = 1 <= lanes <= 512 and unroll * variant.vector <= _MOST_ELEMENTS and lanes * (unroll - 1) < vectors
        for threads in (variant.threads // 2, variant.threads, variant.threads * 2):
            whole = threads % WARP == 0 and 64 <= threads <= 512 and threads % max(lanes, 1) == 0
            if fits and whole and (lanes, threads) != (variant.lanes, variant.threads):
                symbol = f"{variant.symbol}_u{unroll}l{lanes}t{threads}"
                yield dataclasses.replace(variant, symbol=symbol, unroll=unroll, threads=threads, lanes=lanes)

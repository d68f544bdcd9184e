"""Further entry points of a pointwise kernel, for `tune` to measure: the rule's choices with other launch shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from onnxopt.costs.tuning import numbers
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise.access_modes import Mode
from onnxopt.program.schema import Variant

_UNFORESEEN = frozenset({Mode.ANY, Mode.COLUMN})  # modes of entry points for shapes that are not foreseen


def alternatives(kernel: Kernel) -> Iterator[Variant]:
    """The first entry points for foreseen shapes, with other numbers of vectors per thread and threads per block."""
    foreseen = [v for v in kernel.variants if not _UNFORESEEN & set(v.modes)]
    for variant in foreseen[: numbers().entry_points]:
        for unroll in numbers().unrolls:
            for threads in numbers().threads:
                if (unroll, threads) != (variant.unroll, variant.threads):
                    symbol = f"{variant.symbol}_u{unroll}t{threads}"
                    yield dataclasses.replace(variant, symbol=symbol, unroll=unroll, threads=threads)

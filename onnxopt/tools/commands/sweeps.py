"""`onnxopt bench --sweep batch=1,2,4`: bench at several sizes of one dim, a row each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from onnxopt.artifact.measurement import BenchResult
from onnxopt.errors import UsageError
from onnxopt.tools import text_table


class Sweep(NamedTuple):
    """name: of a dynamic dim."""

    name: str
    sizes: tuple[int, ...]


def parse(text: str | None, shapes: Sequence[str]) -> Sweep | None:
    """The sweep of a text NAME=SIZE,SIZE; None for None. shapes: names that --shape gives. UsageError for others."""
    if text is None:
        return None
    name, _, sizes = text.rpartition("=")
    if not name or not re.fullmatch(r"\d+(,\d+)*", sizes):
        raise UsageError(f"--sweep {text}: expected NAME=SIZE,SIZE, as in batch=1,2,4")
    if name in shapes:
        raise UsageError(f"--sweep {name}: --shape gives this dim a size too; leave out one of the two")
    return Sweep(name, tuple(dict.fromkeys(map(int, sizes.split(",")))))


def table(sweep: Sweep, results: Sequence[BenchResult]) -> list[str]:
    """A row for each size: the medians of both sides, their ratio, and requests a second."""
    rows = [
        (
            f"{size}",
            f"{result.baseline.p50:.3f}",
            f"{result.artifact.p50:.3f}",
            f"{result.ratio:.2f}",
            *(f"{1e3 * result.requests / t.mean:,.1f}" for t in (result.baseline, result.artifact)),
        )
        for size, result in zip(sweep.sizes, results, strict=True)
    ]
    titles = (sweep.name, "before p50 ms", "artifact p50 ms", "ratio", "before requests/s", "artifact requests/s")
    return text_table.lines(titles, rows, left=())

"""`onnxopt bench` more than once: at sizes of one dim (--sweep batch=1,2,4), or for numbers of callers (--threads)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from onnxopt import text_table
from onnxopt.artifact.measurement import BenchResult
from onnxopt.errors import UsageError


class Point(NamedTuple):
    """One benchmark. shapes: beside those of --shape."""

    shapes: dict[str, tuple[int, ...]]
    threads: int


class Sweep(NamedTuple):
    """dim: the name of a dynamic dim, "" where none is swept. One of sizes and threads may have several values."""

    dim: str
    sizes: tuple[int, ...]
    threads: tuple[int, ...]

    @property
    def varies(self) -> bool:
        """Whether there is a table of several benchmarks, or one that was asked for as a sweep."""
        return bool(self.dim) or len(self.threads) > 1

    @property
    def name(self) -> str:
        return self.dim or "threads"

    @property
    def values(self) -> tuple[int, ...]:
        """Of what varies."""
        return self.sizes if self.dim else self.threads

    def points(self) -> list[Point]:
        """The benchmarks, in order."""
        shapes: list[dict[str, tuple[int, ...]]] = [{self.dim: (size,)} for size in self.sizes] if self.dim else [{}]
        return [Point(at, threads) for at in shapes for threads in self.threads]


def parse(sweep: str | None, threads: str, shapes: Sequence[str]) -> Sweep:
    """What the texts NAME=SIZE,SIZE and N,N ask for. shapes: names that --shape gives. UsageError for other texts."""
    callers = _numbers(threads)
    if not callers or 0 in callers:
        raise UsageError(f"--threads {threads}: expected one number or several from 1 on, as in 1,2,4")
    if sweep is None:
        return Sweep("", (), callers)
    name, _, text = sweep.rpartition("=")
    sizes = _numbers(text)
    if not name or not sizes:
        raise UsageError(f"--sweep {sweep}: expected NAME=SIZE,SIZE, as in batch=1,2,4")
    if name in shapes:
        raise UsageError(f"--sweep {name}: --shape gives this dim a size too; leave out one of the two")
    if len(callers) > 1:
        raise UsageError("--sweep and several --threads: one of the two may vary; give one number of threads")
    return Sweep(name, sizes, callers)


def _numbers(text: str) -> tuple[int, ...]:
    """Each once, in order; () for a text that is no list of numbers."""
    return tuple(dict.fromkeys(map(int, text.split(",")))) if re.fullmatch(r"\d+(,\d+)*", text, re.ASCII) else ()


def table(sweep: Sweep, results: Sequence[BenchResult]) -> list[str]:
    """A row for each value: the medians of both sides, their ratio, and requests a second."""
    rows = [
        (
            f"{value}",
            f"{result.baseline.p50:.3f}",
            f"{result.artifact.p50:.3f}",
            f"{result.ratio:.2f}",
            *(f"{rate:,.1f}" for rate in result.requests_a_second),
        )
        for value, result in zip(sweep.values, results, strict=True)
    ]
    titles = (sweep.name, "before p50 ms", "artifact p50 ms", "ratio", "before requests/s", "artifact requests/s")
    return text_table.lines(titles, rows, left=())

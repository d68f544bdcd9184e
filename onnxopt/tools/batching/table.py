"""A table of the outcomes of many models, for a terminal or a log."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from onnxopt.tools.batching.work import Outcome
from onnxopt.tools.printable import one_line

_WIDTH = 160  # columns that are not in a terminal


def text(outcomes: Sequence[Outcome]) -> str:
    """The table, then a line for each error in full, then a count."""
    table = Table(box=None, pad_edge=False, header_style="")
    for title, justify in (
        ("model", "left"), ("nodes fused", "right"), ("calls", "right"), ("kernels", "right"),
        ("launches", "right"), ("verify", "left"), ("seconds", "right"), ("", "left"),
    ):  # fmt: skip
        table.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    for outcome in outcomes:
        table.add_row(*map(one_line, _cells(outcome)))
    stream = io.StringIO()
    Console(file=stream, width=_WIDTH, no_color=True, markup=False, highlight=False, emoji=False).print(table)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    failed = [outcome for outcome in outcomes if not outcome.ok]
    lines += [one_line(f"{outcome.name}: {outcome.error}") for outcome in failed]
    return "\n".join([*lines, f"{len(outcomes) - len(failed)} of {len(outcomes)} done"])


def _cells(outcome: Outcome) -> tuple[str, ...]:
    seconds, status = f"{outcome.seconds:.1f}", "done" if outcome.ok else "failed"
    made = outcome.summary
    if made is None:
        return (outcome.name, "", "", "", "", "", seconds, status)
    if made.kept:
        status = f"{made.kept} of {made.models + made.kept} models kept as they were"
    launches = f"{made.launches_before} -> {made.launches_after}"
    return (
        outcome.name, str(made.nodes_fused), str(made.calls), str(made.kernels), launches, made.verify, seconds, status
    )  # fmt: skip

"""Tables as text: the same in a terminal, in a log and in a test."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from onnxopt.tools.printable import one_line

_WIDTH = 1000  # columns: no row is broken


def lines(titles: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str]) -> list[str]:
    """A line for the titles and one for each row. left: titles of the columns that begin at the left."""
    table = Table(box=None, pad_edge=False, header_style="")
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(one_line, row))
    stream = io.StringIO()
    # In a notebook, too, into the stream, and not beside the cell's output.
    console = Console(
        file=stream, width=_WIDTH, no_color=True, markup=False, highlight=False, emoji=False, force_jupyter=False
    )
    console.print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]

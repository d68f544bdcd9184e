"""Tables as text: the same in a terminal, in a log and in a test. rich is imported once one is drawn."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onnxopt.printable import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

WIDTH = 1000  # columns: no row is broken
_RULES = {False: "-", True: "\N{BOX DRAWINGS LIGHT HORIZONTAL}"}


def lines(titles: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str]) -> list[str]:
    """A line for the titles and one for each row. left: titles of the columns that begin at the left."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(one_line, row))
    return drawn([table]).splitlines()


def ruled(name: str, *titles: str, fine: bool) -> Table:
    """A table to fill, with rules below its titles and between its sections. fine: of box-drawing characters.

    name: the title of the first column, which begins at the left.
    """
    from rich.box import Box
    from rich.table import Table

    rule, empty = f" {_RULES[fine] * 2} ", "    "
    box = Box("\n".join([empty, empty, rule, empty, rule, rule, empty, empty]) + "\n", ascii=not fine)
    table = Table(
        box=box, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold", border_style="dim"
    )
    table.add_column(one_line(name), overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def styled(text: str, style: str = "") -> Text:
    """A cell or a line in one of rich's styles."""
    from rich.text import Text

    return Text(one_line(text), style)


def console(width: int = WIDTH, *, colour: bool = False) -> Console:
    """A console of rich that writes into a text, in a notebook, too, and not beside the cell's output."""
    from rich.console import Console

    return Console(
        file=io.StringIO(), width=width, force_terminal=colour, no_color=None if colour else True, markup=False,
        highlight=False, emoji=False, force_jupyter=False, record=True,
    )  # fmt: skip


def drawn(parts: Iterable[RenderableType], width: int = WIDTH, *, colour: bool = False) -> str:
    """What rich draws, without spaces at the ends of lines. colour: with a terminal's escape sequences."""
    page = console(width, colour=colour)
    for part in parts:
        page.print(part)
    return "\n".join(line.rstrip() for line in page.export_text(styles=colour).splitlines())

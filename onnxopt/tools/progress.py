"""Progress on stderr: a line that is kept up to date on a terminal, a few plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from onnxopt.phases import Progress, Steps

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


@contextlib.contextmanager
def shown(quiet: bool = False, *, still: bool = False) -> Iterator[Progress | None]:
    """A callback for pipeline.optimize and others that report their phases; None with `quiet`.

    still: the line changes in calls alone, so that nothing runs beside what is timed.
    """
    steps = Steps()
    if quiet:
        yield None
    elif not sys.stderr.isatty():

        def write(phase: str, detail: str, done: int, total: int) -> None:
            if line := steps.in_log(phase, detail, done, total):
                click.echo(line, err=True)

        yield write
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=not still) as bar:
            task = bar.add_task("Starting")

            def advance(phase: str, detail: str, done: int, total: int) -> None:
                bar.update(task, description=escape(steps.text(phase, detail, done, total)), refresh=still)

            _bars.append(bar)
            try:
                yield advance
            finally:
                _bars.remove(bar)


_bars: list[Bar] = []


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A block that prints on stdout, with no line of progress below."""
    for bar in _bars:
        bar.stop()
    try:
        yield
    finally:
        for bar in _bars:
            bar.start()

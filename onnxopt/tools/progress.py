"""Progress on stderr for people at a terminal; nothing at all for anyone else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_TITLES = {
    "load": "Reading the model",
    "normalize": "Normalizing",
    "rewrite": "Recognising attention",
    "fuse": "Finding chains",
    "outline": "Outlining functions",
    "generate": "Generating CUDA source",
    "compile": "Compiling kernels",
    "quantize": "Quantizing",
    "package": "Writing the artifact",
    "verify": "Verifying",
}


@contextlib.contextmanager
def shown(first: str = "") -> Iterator[Callable[[str, str], None] | None]:
    """A callback for pipeline.optimize that keeps one line on the terminal up to date; None where stderr is none."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(first or "Starting")

        def advance(phase: str, detail: str) -> None:
            title = _TITLES.get(phase, phase)
            progress.update(task, description=f"{title}: {detail}" if detail else title)

        yield advance

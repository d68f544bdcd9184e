"""Progress on stderr: a line that is kept up to date on a terminal, a few plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

from onnxopt.phases import Progress
from onnxopt.tools.printable import one_line

_TITLES = {
    "load": "Reading the model",
    "normalize": "Normalizing",
    "precision": "Measuring ranges",
    "rewrite": "Recognising attention",
    "fuse": "Finding chains",
    "outline": "Outlining functions",
    "generate": "Generating CUDA source",
    "compile": "Compiling kernels",
    "quantize": "Quantizing",
    "package": "Writing the artifact",
    "original": "Running the original",
    "verify": "Verifying",
    "open": "Measuring memory",
    "time": "Timing",
}
_IN_A_LOG = frozenset({"precision", "compile", "quantize", "original", "verify", "time"})  # that may take long
_LOG_AFTER = 1.0  # seconds; what takes less, as an error in the input, needs no progress
_LOG_SECONDS = 5.0  # between two lines of one phase in a log
_ESTIMATE_SECONDS = 1.0  # after which the steps done say how long the others take


class Steps:
    """What to say of each call of a progress callback. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase, self._began = ("", ""), 0.0
        self._started, self._said = clock(), 0.0
        self._announced: set[tuple[str, str]] = set()

    def text(self, phase: str, detail: str, done: int, total: int) -> str:
        """One line: the phase, what it works on, the count of its steps and the time left."""
        now = self._clock()
        if (phase, detail) != self._phase or not done:
            self._phase, self._began = (phase, detail), now
        parts = [_TITLES.get(phase, phase), *([one_line(detail)] if detail else [])]
        if total:
            passed, remaining = now - self._began, ""
            if done and done < total and passed >= _ESTIMATE_SECONDS:
                remaining = f", about {_duration(passed / done * (total - done))} left"
            parts.append(f"{done} of {total}{remaining}")
        return ": ".join(parts)

    def in_log(self, phase: str, detail: str, done: int, total: int) -> str:
        """The line for a log, "" where an earlier one is enough."""
        text, now = self.text(phase, detail, done, total), self._clock()
        new = (phase, detail) not in self._announced  # phases may come in turn, as those of several trials
        if phase not in _IN_A_LOG or now - self._started < _LOG_AFTER:
            return ""
        if not new and (not total or now - self._said < _LOG_SECONDS):
            return ""
        self._said = now
        self._announced.add((phase, detail))
        return text


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


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

            yield advance

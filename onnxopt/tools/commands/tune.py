"""`onnxopt tune`: options, a progress bar, and the result as text or JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich import progress
from rich.console import Console

from onnxopt.errors import UsageError
from onnxopt.tools import interrupts, tuning
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json
from onnxopt.tools.secret_keys import read_secret_key
from onnxopt.tools.tuning import TuneResult
from onnxopt.tools.tuning.search import Progress

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_INTERRUPTED = 130


@click.command("tune")
@click.argument("artifact", type=Path)
@click.option("--budget", default="5m", show_default=True, help="Time to spend, as 90s, 5m or 1h.")
@options.shape
@options.provider
@click.option("--restart", is_flag=True, help="Discard the trials of an unfinished run.")
@options.timeout
@click.option("--sign", "key", type=Path, help="Secret key to sign the changed artifact with.")
@options.json_option
def command(
    artifact: Path,
    budget: str,
    shapes: tuple[str, ...],
    provider: str | None,
    restart: bool,
    timeout: float | None,
    key: Path | None,
    as_json: bool,
) -> None:
    """Find the fastest options for ARTIFACT on this machine by measurement, and write them into it.

    A signature of ARTIFACT is removed, as it no longer fits; --sign makes a new one.

    Exit code 130 after an interrupt: the results so far are kept, and the next run continues from there.
    """
    secret = None if key is None else read_secret_key(key)
    interrupts.let_finish()  # a plain kill keeps the results so far, as Ctrl-C does
    with _progress() as advance:
        result = tuning.tune(
            artifact,
            budget=parse_seconds(budget),
            shapes=options.parse_shapes(shapes),
            provider=provider,
            restart=restart,
            sign=secret,
            timeout=timeout,
            progress=advance,
        )
    if as_json:
        print_json(dataclasses.asdict(result))
    else:
        click.echo(describe(result))
    click.get_current_context().exit(_INTERRUPTED if result.status == "interrupted" else 0)


def parse_seconds(text: str) -> float:
    """Seconds of "90s", "5m", "1h" or a plain number. UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not match:
        raise UsageError(f"--budget {text}: expected a time such as 90s, 5m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def describe(result: TuneResult) -> str:
    """The result as text for people."""
    resumed = f", {result.resumed} of them from an earlier run" if result.resumed else ""
    lines = [
        f"{result.device}, {result.provider}, {result.case}",
        f"{result.trials} trials in {result.seconds:.0f} s{resumed}"
        + ("" if result.complete else "; not every option was tried: run it again, or give a larger --budget"),
    ]
    for change in result.changes:
        gain = "" if change.ratio is None else f", {change.ratio:.3f} times as fast"
        before = "ONNX Runtime's default" if change.before is None else change.before
        after = "ONNX Runtime's default" if change.after is None else change.after
        lines.append(f"  {change.option}: {before} -> {after}{gain}")
    for mode, comparison in result.comparisons.items():
        label = "with a CUDA graph" if mode == "cuda_graph" else "plain runs"
        lines.append(
            f"{label}: rule-made {comparison.first_ms:.3f} ms, {'tuned' if result.changes else 'the same again'} "
            f"{comparison.second_ms:.3f} ms, ratio {comparison.ratio:.3f} "
            f"({comparison.low:.3f} to {comparison.high:.3f})"
        )
    for option, entries in result.kernels.items():
        lines += [f"  {option}: {describe_kernel(entry)}" for entry in entries]
    lines += [f"note: {note}" for note in result.notes]
    last = {
        "faster": f"wrote {result.file}",
        "unchanged": f"the rule-made options stay; {result.file} has the measurements",
        "interrupted": f"interrupted: {result.file} has the results so far; run it again to continue",
    }
    return "\n".join([*lines, last[result.status]])


def describe_kernel(entry: dict[str, Any]) -> str:
    """ "float16 m1024 n768 k768: 4.8 us instead of 5.2"."""
    what = entry.get("product") or entry.get("convolution") or f"{entry['kernel']} of {entry['size']}"
    rule = next(v for k, v in entry.items() if k.endswith("_microseconds"))
    return f"{what}: {entry['microseconds']:.1f} us instead of {rule:.1f}"


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on stderr for people at a terminal; nothing at all for anyone else."""
    if not sys.stderr.isatty():
        yield None
        return
    console = Console(stderr=True)
    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}"),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)
            if "times as fast" in text and "rejected" not in text:
                console.print(text, highlight=False)

        yield advance

"""onnxopt tune: options and arguments, a progress bar, and what was found as text or JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.errors import UsageError
from onnxopt.tools.commands import options
from onnxopt.tools.commands.signatures import read_secret_key

if TYPE_CHECKING:
    from onnxopt.tools.tuning import Result
    from onnxopt.tools.tuning.search import Progress

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_INTERRUPTED = 130


@click.command()
@click.argument("artifact", type=Path)
@click.option("--budget", default="5m", show_default=True, help="Time to spend: 90s, 5m, 1h.")
@options.shape
@click.option("--provider", help="ORT's name of it. Default: CUDA where usable, else CPU.")
@click.option("--restart", is_flag=True, help="Forget what an unfinished run found out.")
@click.option("--sign", "key", type=Path, help="Secret key to sign the changed artifact with.")
@options.json_option
@click.pass_context
def tune(
    ctx: click.Context,
    artifact: Path,
    budget: str,
    shapes: tuple[str, ...],
    provider: str | None,
    restart: bool,
    key: Path | None,
    as_json: bool,
) -> None:
    """Find the fastest options for ARTIFACT on this machine, by measurement, and write them into it.

    A signature that ARTIFACT has is removed, as it signs what was there before; --sign makes a new one.

    Exit code 130 where it was interrupted: what was known until then is kept, and the next run goes on from there.
    """
    from onnxopt.tools import tuning

    secret = None if key is None else read_secret_key(key)
    # A plain kill keeps what is known, as ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _progress() as advance:
        result = tuning.tune(
            artifact,
            budget=parse_seconds(budget),
            shapes=options.parse_shapes(shapes),
            provider=provider,
            restart=restart,
            sign=secret,
            progress=advance,
        )
    if as_json:
        options.print_json(dataclasses.asdict(result))
    else:
        click.echo(describe(result))
    ctx.exit(_INTERRUPTED if result.status == "interrupted" else 0)


def parse_seconds(text: str) -> float:
    """Seconds of "90s", "5m", "1h" or a plain number. UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found:
        raise UsageError(f"--budget {text}: expected a time such as 90s, 5m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def describe(result: Result) -> str:
    """What tune found, for a person."""
    resumed = f", {result.resumed} of them from an earlier run" if result.resumed else ""
    lines = [
        f"{result.device}, {result.provider}, {result.case}",
        f"{result.trials} trials in {result.seconds:.0f} s{resumed}"
        + ("" if result.complete else "; not everything was tried: run it again, or give it a larger --budget"),
    ]
    for change in result.changes:
        gain = "" if change.ratio is None else f", {change.ratio:.3f} times as fast"
        before = "ONNX Runtime's default" if change.before is None else change.before
        after = "ONNX Runtime's default" if change.after is None else change.after
        lines.append(f"  {change.option}: {before} -> {after}{gain}")
    for mode, found in result.comparisons.items():
        label = "with a CUDA graph" if mode == "cuda_graph" else "plain runs"
        lines.append(
            f"{label}: rule-made {found.first_ms:.3f} ms, {'tuned' if result.changes else 'the same again'} "
            f"{found.second_ms:.3f} ms, ratio {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
        )
    for option, found_faster in result.kernels.items():
        lines += [f"  {option}: {_describe_kernel(entry)}" for entry in found_faster]
    lines += [f"note: {note}" for note in result.notes]
    kept = {
        "faster": f"wrote {result.file}",
        "unchanged": f"the rule-made options stay; {result.file} has the measurements",
        "interrupted": f"interrupted: {result.file} has what was found; run it again to go on",
    }
    return "\n".join([*lines, kept[result.status]])


def _describe_kernel(entry: dict[str, Any]) -> str:
    """ "float16 m1024 n768 k768: 4.8 us instead of 5.2"."""
    what = entry.get("product") or f"{entry['kernel']} of {entry['size']}"
    rule = next(v for k, v in entry.items() if k.endswith("_microseconds"))
    return f"{what}: {entry['microseconds']:.1f} us instead of {rule:.1f}"


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on stderr for people at a terminal; nothing at all for anyone else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)
            if "times as fast" in text and "not kept" not in text:
                console.print(text, highlight=False)

        yield advance

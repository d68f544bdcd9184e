"""`onnxopt bench`: times of an artifact and of what it is compared with, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact.measurement import BenchResult
from onnxopt.tools import progress, text_table
from onnxopt.tools.bench import bench
from onnxopt.tools.commands import options
from onnxopt.tools.commands.fleets import FleetQuestion, fleet_options


@click.command("bench")
@click.argument("artifact", type=Path)
@click.option("--against", type=Path, help="Model or artifact to compare with. Default: the original.")
@options.shape
@options.data
@options.provider
@click.option("--iterations", type=int, help="Runs of each. Default: what fits in 5 seconds.")
@fleet_options
@options.quiet
@options.json_option
def command(
    artifact: Path,
    against: Path | None,
    shapes: tuple[str, ...],
    data: tuple[Path, ...],
    provider: str | None,
    iterations: int | None,
    quiet: bool,
    as_json: bool,
    **fleet_question: Any,
) -> None:
    """Time ARTIFACT against the original, in turn in one process, after comparing their outputs."""
    question = FleetQuestion(**fleet_question)
    question.check(artifact)
    with progress.shown(quiet, still=True) as advance:
        result = bench(
            artifact,
            against=against,
            shapes=options.parse_shapes(shapes),
            provider=provider,
            iterations=iterations,
            data=data,
            progress=advance,
        )
    fleet = question.answer(artifact, result)
    if as_json:
        document = dataclasses.asdict(result)
        del document["kernels"]  # bench measures no single kernels
        options.print_json(document | ({"fleet": fleet.model_dump()} if fleet else {}))
        return
    click.echo(f"{result.provider}, {result.case}; outputs agree ({result.compared:.2g} of the limit)")
    click.echo("\n".join(table(result)))
    click.echo(f"{result.ratio:.2f} times as fast as {result.against}")
    if fleet:
        click.echo(fleet.text())


def table(result: BenchResult) -> list[str]:
    """Both sides: milliseconds of a run, runs, requests a second, milliseconds to open a session and to its result."""
    rows = []
    for name, t in (("before", result.baseline), ("artifact", result.artifact)):
        opening = ["" if ms is None else f"{ms:.1f}" for ms in (t.open_ms, t.first_ms)]
        a_second = f"{1e3 * result.requests / t.mean:,.1f}"
        rows.append((name, f"{t.p50:.3f}", f"{t.p95:.3f}", f"{t.mean:.3f}", f"{t.runs}", a_second, *opening))
    titles = ("", "p50 ms", "p95 ms", "mean ms", "runs", "requests/s", "open ms", "first result ms")
    return text_table.lines(titles, rows, left=("",))

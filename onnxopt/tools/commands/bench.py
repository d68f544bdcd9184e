"""`onnxopt bench`: times of an artifact and of what it is compared with, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact.fleet import Fleet
from onnxopt.artifact.measurement import BenchResult
from onnxopt.errors import UsageError
from onnxopt.tools import progress, text_table
from onnxopt.tools.bench import bench
from onnxopt.tools.commands import options, sweeps
from onnxopt.tools.commands.fleets import FleetQuestion, fleet_options


@click.command("bench")
@click.argument("artifact", type=Path)
@click.option("--against", type=Path, help="Model or artifact to compare with. Default: the original.")
@options.shape
@options.data
@options.provider
@click.option("--iterations", type=int, help="Runs of each. Default: what fits in 5 seconds.")
@click.option("--sweep", metavar="DIM=SIZE,...", help="Time at each of these sizes of a dynamic dim (batch=1,2,4).")
@fleet_options
@options.quiet
@options.json_option
def command(
    artifact: Path,
    shapes: tuple[str, ...],
    provider: str | None,
    sweep: str | None,
    quiet: bool,
    as_json: bool,
    against: Path | None,
    data: tuple[Path, ...],
    iterations: int | None,
    **fleet_question: Any,
) -> None:
    """Time ARTIFACT against the original, in turn in one process, after comparing their outputs."""
    question, sizes = FleetQuestion(**fleet_question), options.parse_shapes(shapes)
    question.check(artifact, provider)
    asked = sweeps.parse(sweep, tuple(sizes))
    if asked is not None and data:
        raise UsageError("--sweep draws inputs of each size, and --data gives inputs; leave out one of the two")
    results, fleets = [], []
    with progress.shown(quiet, still=True) as advance:
        for at in [{asked.name: (size,)} for size in asked.sizes] if asked else [{}]:
            result = bench(
                artifact,
                against=against,
                shapes={**sizes, **at},
                provider=provider,
                iterations=iterations,
                data=data,
                progress=advance,
            )
            results.append(result)
            fleets.append(question.answer(artifact, result))
    if as_json:
        documents = [_document(result, fleet) for result, fleet in zip(results, fleets, strict=True)]
        options.print_json({"sweep": documents} if asked else documents[0])
        return
    compared = max(result.compared for result in results)
    case = "every size" if asked else results[0].case
    click.echo(f"{results[0].provider}, {case}; outputs agree ({compared:.2g} of the limit)")
    click.echo("\n".join(sweeps.table(asked, results) if asked else table(results[0])))
    if not asked:
        click.echo(f"{results[0].ratio:.2f} times as fast as {results[0].against}")
    for fleet in filter(None, fleets):
        click.echo(fleet.text())


def _document(result: BenchResult, fleet: Fleet | None) -> dict[str, Any]:
    document = dataclasses.asdict(result)
    del document["kernels"]  # bench measures no single kernels
    return document | ({"fleet": fleet.model_dump()} if fleet else {})


def table(result: BenchResult) -> list[str]:
    """Both sides: milliseconds of a run, runs, requests a second, milliseconds to open a session and to its result."""
    rows = []
    for name, t in (("before", result.baseline), ("artifact", result.artifact)):
        opening = ["" if ms is None else f"{ms:.1f}" for ms in (t.open_ms, t.first_ms)]
        a_second = f"{1e3 * result.requests / t.mean:,.1f}"
        rows.append((name, f"{t.p50:.3f}", f"{t.p95:.3f}", f"{t.mean:.3f}", f"{t.runs}", a_second, *opening))
    titles = ("", "p50 ms", "p95 ms", "mean ms", "runs", "requests/s", "open ms", "first result ms")
    return text_table.lines(titles, rows, left=("",))

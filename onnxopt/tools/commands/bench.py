"""`onnxopt bench`: times of an artifact and of what it is compared with, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.tools import progress
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
    click.echo(f"{'':10}{'p50 ms':>10}{'p95 ms':>10}{'mean ms':>10}{'runs':>7}")
    for name, timing in (("before", result.baseline), ("artifact", result.artifact)):
        click.echo(f"{name:10}{timing.p50:10.3f}{timing.p95:10.3f}{timing.mean:10.3f}{timing.runs:7}")
    click.echo(f"{result.ratio:.2f} times as fast as {result.against}")
    if fleet:
        click.echo(fleet.text())

"""`onnxopt bench`: times of an artifact and of what it is compared with, as text or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from onnxopt import text_table
from onnxopt.artifact.fleet import Fleet
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.summary import limit_text
from onnxopt.errors import UsageError
from onnxopt.tools import progress, sweeps
from onnxopt.tools.bench import bench
from onnxopt.tools.bench_options import BenchOptions
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json
from onnxopt.tools.fleets import FleetQuestion, fleet_options


@click.command("bench")
@click.argument("artifact", type=Path)
@options.click_options(BenchOptions)
@click.option("--sweep", metavar="DIM=SIZE,...", help="Time at each of these sizes of a dynamic dim (batch=1,2,4).")
@click.option(
    "--threads", metavar="N,...", default="1", help="Callers that run one session at the same time; several: each."
)
@fleet_options
@options.quiet
@options.json_option
def command(
    artifact: Path,
    sweep: str | None,
    threads: str,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Time ARTIFACT against the original, in turn in one process, after comparing their outputs."""
    question = FleetQuestion(**{field.name: fields.pop(field.name) for field in dataclasses.fields(FleetQuestion)})
    sizes = options.parse_shapes(fields["shapes"])
    asked = sweeps.parse(sweep, threads, tuple(sizes))
    chosen = BenchOptions(**fields, footprints=not asked.varies)
    question.check(artifact, chosen.provider)
    if asked.varies and chosen.profile is not None:
        raise UsageError("--profile is of one size and one caller; leave out --sweep and --threads, or --profile")
    if asked.dim and chosen.data:
        raise UsageError("--sweep draws inputs of each size, and --data gives inputs; leave out one of the two")
    results, fleets = [], []
    with progress.shown(quiet, still=True) as advance:
        for point in asked.points():
            shapes = {**sizes, **point.shapes}
            result = bench(artifact, chosen, shapes=shapes, threads=point.threads, progress=advance)
            results.append(result)
            fleets.append(question.answer(artifact, result))
    if as_json:
        documents = [_document(result, fleet) for result, fleet in zip(results, fleets, strict=True)]
        print_json({"sweep": documents} if asked.varies else documents[0])
        return
    click.echo("\n".join(_text(asked, results)))
    for fleet in filter(None, fleets):
        click.echo(fleet.text())


def _text(asked: sweeps.Sweep, results: Sequence[BenchResult]) -> list[str]:
    first, compared = results[0], max(result.compared for result in results)
    callers = f", {first.threads} threads" if len(asked.threads) == 1 and first.threads > 1 else ""
    case = "every size" if asked.dim else first.case
    head = f"{first.provider}, {case}{callers}; outputs agree, worst error {limit_text(compared)}"
    notes = [f"note: {note}" for note in dict.fromkeys(note for result in results for note in result.notes)]
    if asked.varies:
        return [head, *sweeps.table(asked, results), *notes]
    return [head, *table(first), *notes, f"{first.ratio:.2f} times as fast as {first.against}"]


def _document(result: BenchResult, fleet: Fleet | None) -> dict[str, Any]:
    document = dataclasses.asdict(result)
    del document["kernels"]  # bench measures no single kernels
    return document | ({"fleet": fleet.model_dump()} if fleet else {})


def table(result: BenchResult) -> list[str]:
    """A row for each figure, a column for each side. Figures that neither side has are left out."""
    sides = (result.baseline, result.artifact)
    rows = [
        ("p50 ms", _cells("{:.3f}", [t.p50 for t in sides])),
        ("p95 ms", _cells("{:.3f}", [t.p95 for t in sides])),
        ("mean ms", _cells("{:.3f}", [t.mean for t in sides])),
        ("runs", _cells("{:,}", [t.runs for t in sides])),
        ("requests/s", _cells("{:,.1f}", result.requests_a_second)),
        (result.launched, _cells("{:,}", [t.launches for t in sides])),
        ("peak host memory, MB", _cells("{:,.1f}", [_megabytes(t.host_bytes) for t in sides])),
        ("peak GPU memory, MB", _cells("{:,.1f}", [_megabytes(t.device_bytes) for t in sides])),
        ("open ms", _cells("{:.1f}", [t.open_ms for t in sides])),
        ("first result ms", _cells("{:.1f}", [t.first_ms for t in sides])),
    ]
    filled = [(name, *cells) for name, cells in rows if any(cells)]
    return text_table.lines(("", "before", "artifact"), filled, left=("",))


def _cells(form: str, figures: Sequence[float | None]) -> tuple[str, ...]:
    return tuple("" if figure is None else form.format(figure) for figure in figures)


def _megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6

"""`onnxopt batch`: options, progress as models end, and the table of all of them as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich import progress
from rich.console import Console

from onnxopt.printable import one_line
from onnxopt.tools.batching import flow, table
from onnxopt.tools.batching.work import ModelOutcome
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_result


@click.command("batch")
@click.argument("models", metavar="CONFIG|MODEL...", nargs=-1, required=True)
@click.option("--out-dir", type=Path, required=True, metavar="DIR", help="Folder for the artifacts and batch.json.")
@options.archs
@click.option("--jobs", type=click.IntRange(min=1), help="Models at once on this machine. Default: one for two cores.")
@click.option(
    "--ray", metavar="ADDRESS", help="Run on a Ray cluster instead: auto, HOST:PORT, or local for one on this machine."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing as models end.")
@options.json_option
def command(
    models: Sequence[str],
    out_dir: Path,
    archs: tuple[str, ...],
    jobs: int | None,
    ray: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Optimize many models in processes of their own, and go on where an earlier run ended.

    CONFIG is a .toml file with options for all models and for single ones. MODEL is a model file, a folder of models or
    a pattern in quotes; what CONFIG says of a single model goes before --arch. A model that fails leaves the others
    done; exit code then: the largest of those that failed.
    """
    if dry_run:
        planned = flow.plan(models, out_dir, archs or None)
        rows = [{"name": job.name, "source": str(job.source), "action": action} for job, action in planned]
        print_result({"plan": rows}, table.plan_text(planned), as_json)
        return
    with _progress(quiet) as advance:
        result = flow.batch(models, out_dir, archs=archs or None, jobs=jobs, ray=ray, progress=advance)
    print_result(result.to_json(), table.text(result.models), as_json)
    click.get_current_context().exit(result.exit_code)


@contextmanager
def _progress(quiet: bool) -> Iterator[flow.Progress | None]:
    """A bar on stderr for people at a terminal, a line for each model for anyone else."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _line
    else:
        columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
        name = progress.TextColumn("{task.description}")
        with progress.Progress(*columns, name, console=Console(stderr=True)) as bar:
            task = bar.add_task("starting", total=None)

            def advance(done: int, total: int, outcome: ModelOutcome) -> None:
                bar.update(task, completed=done, total=total, description=one_line(outcome.name))

            yield advance


def _line(done: int, total: int, outcome: ModelOutcome) -> None:
    if not outcome.resumed:
        status = "done" if outcome.ok else f"failed: {outcome.error}"
        click.echo(one_line(f"[{done}/{total}] {outcome.name}: {status} in {outcome.seconds:.1f} s"), err=True)

"""`python -m models list | path NAME | fetch NAME|all | export NAME|all [--size tiny|base]`."""

from __future__ import annotations

import sys

import click

import models
from models import exported, fetch
from models.entries import CACHE, Trained


@click.group()
def main() -> None:
    """Real models by name: trained ones from packages, and exports from PyTorch. The files are in models/cache."""


@main.command("list")
def list_models() -> None:
    """Name, kind, size, whether cached, and licence of every model."""
    click.echo(f"{'name':32}{'kind':10}{'MB':>8}  {'cached':8}licence")
    for name in models.names():
        row = models.entry(name)
        file, cached = CACHE / f"{name}.onnx", models.is_cached(name)
        data = CACHE / f"{name}.onnx.data"
        size = row.bytes if isinstance(row, Trained) else file.stat().st_size if cached else None
        if cached and data.exists():
            size = (size or 0) + data.stat().st_size
        shown = f"{size / 1e6:8.1f}" if size is not None else f"{'?':>8}"
        cannot = f"  (ORT cannot run it: {row.ort_cannot_run})" if row.ort_cannot_run else ""
        click.echo(f"{name:32}{row.kind:10}{shown}  {'yes' if cached else 'no':8}{row.licence}{cannot}")


@main.command("path")
@click.argument("name")
def path(name: str) -> None:
    """Print the model's path, fetching or exporting it first if needed."""
    click.echo(models.path(name))


@main.command("fetch")
@click.argument("name")
def fetch_models(name: str) -> None:
    """Fetch one trained model, or all."""
    for each in models.names("trained") if name == "all" else [name]:
        click.echo(fetch.fetch(each))


@main.command("export")
@click.argument("name")
@click.option("--size", type=click.Choice(exported.SIZES), help="With `all`: only models of this size.")
def export_models(name: str, size: str | None) -> None:
    """Export one model, or all; a name already cached is not exported again."""
    rows = exported.exports()
    for each in [k for k, v in rows.items() if size in (None, v.size)] if name == "all" else [name]:
        file = exported.export(each)
        click.echo(f"{file}  {exported.export_note(rows[each]).get('seconds')} s")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except models.ModelUnavailable as error:
        sys.exit(f"error: {error}")
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)

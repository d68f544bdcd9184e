"""`onnxopt verify`: two models or artifacts compared, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from onnxopt.tools.commands import options
from onnxopt.tools.commands.verification_text import verification_text
from onnxopt.tools.verify import verify


@click.command("verify")
@click.argument("original", type=Path)
@click.argument("optimized", type=Path)
@options.shape
@click.option(
    "--provider",
    "providers",
    multiple=True,
    help="Execution provider by ONNX Runtime's name; repeat for more. Default: CPU, and CUDA where usable.",
)
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    original: Path,
    optimized: Path,
    shapes: tuple[str, ...],
    providers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare two models, each a model file or an artifact. Exit code 1 if they do not agree."""
    report = verify(original, optimized, shapes=options.parse_shapes(shapes), providers=providers or None)
    if as_json:
        options.print_json({**dataclasses.asdict(report), "failures": len(report.failures)})
    else:
        click.echo(verification_text(report))
    ctx.exit(0 if report.status == "passed" else 1)

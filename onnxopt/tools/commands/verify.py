"""`onnxopt verify`: two models or artifacts compared, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from onnxopt.artifact import archive
from onnxopt.artifact.open import read_manifest
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.runtime.sessions import CPU, CUDA
from onnxopt.tools.commands import options
from onnxopt.tools.commands.verification_text import verification_text
from onnxopt.tools.printable import printable
from onnxopt.tools.verify import verify

_ON = {"cpu": CPU, "cuda": CUDA}


@click.command("verify")
@click.argument("original", type=Path)
@click.argument("optimized", type=Path, required=False)
@options.shape
@options.data
@click.option(
    "--provider",
    "providers",
    multiple=True,
    help="Execution provider by ONNX Runtime's name; repeat for more. Default: CPU, and CUDA where usable.",
)
@click.option(
    "--on",
    type=click.Choice([*_ON]),
    multiple=True,
    help="Verify on this machine's CPU or GPU, and record the result in the artifact; repeat for both.",
)
@options.emulate
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    original: Path,
    optimized: Path | None,
    shapes: tuple[str, ...],
    data: tuple[Path, ...],
    providers: tuple[str, ...],
    on: tuple[str, ...],
    emulate: bool,
    as_json: bool,
) -> None:
    """Compare two models, each a model file or an artifact.

    With one argument, an artifact, that is compared with the model that it was made from. Exit code 1 if the models do
    not agree, 3 if nothing could be compared.
    """
    if on and providers:
        raise UsageError("--on and --provider cannot be given together")
    report = verify(
        original,
        optimized,
        shapes=options.parse_shapes(shapes),
        providers=[_ON[name] for name in on] or providers or None,
        data=data,
        record=bool(on) or emulate,
        emulate=emulate,
    )
    if as_json:
        options.print_json({**dataclasses.asdict(report), "failures": len(report.failures)})
    else:
        click.echo(printable(verification_text(report, _archs(optimized or original))))
    ctx.exit({"passed": 0, "not_run": NotVerifiedError.exit_code}.get(report.status, 1))


def _archs(path: Path) -> tuple[str, ...]:
    """The architectures that an artifact's kernels were compiled for; none for a model file."""
    if not path.is_dir() and not archive.is_archive(path):
        return ()
    return read_manifest(path).archs

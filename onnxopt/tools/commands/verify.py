"""`onnxopt verify`: two models or artifacts compared, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact import archive
from onnxopt.artifact.open import read_manifest
from onnxopt.artifact.summary import reference_lines
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.printable import printable
from onnxopt.runtime.sessions import CPU, CUDA
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import columns, print_json
from onnxopt.tools.commands.verification_text import verification_text
from onnxopt.tools.quality import compare_with
from onnxopt.tools.verify import verify
from onnxopt.tools.verify_options import VerifyOptions
from onnxopt.verification.lowering.goals import Goals

_ON = {"cpu": CPU, "cuda": CUDA}


@click.command("verify")
@click.argument("original", type=Path)
@click.argument("optimized", type=Path, required=False)
@options.click_options(VerifyOptions)
@click.option(
    "--on",
    type=options.Names([*_ON], {"gpu": "cuda"}),
    multiple=True,
    help="Verify on this machine's CPU or GPU, and record the result in the artifact; repeat for both.",
)
@click.option(
    "--reference",
    type=Path,
    help="The float32 model: also says how near the second model is to it. Give your own inputs with --data.",
)
@options.goals
@options.quiet
@options.json_option
def command(
    original: Path,
    optimized: Path | None,
    on: tuple[str, ...],
    reference: Path | None,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Compare two models, each a model file or an artifact.

    With one argument, an artifact, that is compared with the model that it was made from. Exit code 1 if the models do
    not agree, or an output misses what --min-sqnr and its like ask for, 3 if nothing could be compared.
    """
    goals = Goals(**{field.name: fields.pop(field.name) for field in dataclasses.fields(Goals)})
    if reference is None and goals.stated:
        raise UsageError(f"{next(iter(goals.stated))} is against a --reference, which was not given")
    if on and fields["providers"]:
        raise UsageError("--on and --provider cannot be given together")
    fields["shapes"] = options.parse_shapes(fields["shapes"])
    fields["providers"] = [_ON[name] for name in on] or fields["providers"] or None
    chosen = VerifyOptions(**fields, record=bool(on) or fields["emulate"])
    with progress.shown(quiet) as advance:
        report = verify(original, optimized, chosen, progress=advance)
    near = None
    if reference is not None:
        chosen = dataclasses.replace(chosen, record=bool(on))
        near = compare_with(reference, optimized or original, goals, chosen)
    missed = [row for row in near.quality if goals.missed(row)] if near is not None else []
    if as_json:
        document = {**dataclasses.asdict(report), "failures": len(report.failures)}
        if near is not None:
            document["quality"] = [dataclasses.asdict(row) for row in near.quality]
            document["missed"] = len(missed)
        print_json(document)
    else:
        width, colour = columns()
        click.echo(verification_text(report, _archs(optimized or original), width, colour=colour))
        if near is not None:
            click.echo(printable("\n".join(reference_lines(near))))
    status = {"passed": 0, "undecided": 0, "not_run": NotVerifiedError.exit_code}.get(report.status, 1)
    click.get_current_context().exit(status or (1 if missed else 0))


def _archs(path: Path) -> tuple[str, ...]:
    """The architectures that an artifact's kernels were compiled for; none for a model file."""
    if not path.is_dir() and not archive.is_archive(path):
        return ()
    return read_manifest(path).archs

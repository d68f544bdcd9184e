"""`onnxopt verify`: two models or artifacts compared, as text or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click

from onnxopt.artifact import archive
from onnxopt.artifact.open import read_manifest
from onnxopt.artifact.summary import quality_text
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.runtime.sessions import CPU, CUDA
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.verification_text import verification_text
from onnxopt.tools.printable import printable
from onnxopt.tools.quality import quality
from onnxopt.tools.verify import verify
from onnxopt.verification.quality import Quality

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
@click.option(
    "--reference",
    type=Path,
    help="The float32 model: also says how near the second model is to it. Give your own inputs with --data.",
)
@click.option("--min-sqnr", metavar="DB", type=float, help="Signal to noise that every output has to keep to it.")
@click.option(
    "--min-agreement",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Share of rows whose greatest element has to be at the same place.",
)
@options.quiet
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
    reference: Path | None,
    min_sqnr: float | None,
    min_agreement: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare two models, each a model file or an artifact.

    With one argument, an artifact, that is compared with the model that it was made from. Exit code 1 if the models do
    not agree, or miss --min-sqnr or --min-agreement, 3 if nothing could be compared.
    """
    if reference is None and (min_sqnr is not None or min_agreement is not None):
        raise UsageError("--min-sqnr and --min-agreement are about a --reference, which was not given")
    if on and providers:
        raise UsageError("--on and --provider cannot be given together")
    with progress.shown(quiet) as advance:
        report = verify(
            original,
            optimized,
            shapes=options.parse_shapes(shapes),
            providers=[_ON[name] for name in on] or providers or None,
            data=data,
            record=bool(on) or emulate,
            emulate=emulate,
            progress=advance,
        )
    rows: tuple[Quality, ...] = ()
    if reference is not None:
        chosen = [_ON[name] for name in on] or providers or None
        rows = quality(
            reference, optimized or original, shapes=options.parse_shapes(shapes), providers=chosen, data=data
        )
    missed = [row for row in rows if not _reaches(row, min_sqnr, min_agreement)]
    if as_json:
        document = {**dataclasses.asdict(report), "failures": len(report.failures)}
        if reference is not None:
            document["quality"] = [dataclasses.asdict(row) for row in rows]
            document["missed"] = len(missed)
        options.print_json(document)
    else:
        text = verification_text(report, _archs(optimized or original))
        click.echo(printable("\n".join([text, *_quality_lines(reference, rows, missed, data)])))
    status = {"passed": 0, "not_run": NotVerifiedError.exit_code}.get(report.status, 1)
    ctx.exit(status or (1 if missed else 0))


def _reaches(row: Quality, min_sqnr: float | None, min_agreement: float | None) -> bool:
    near = not row.invalid if min_sqnr is None else row.reaches(min_sqnr)
    return near and (min_agreement is None or row.argmax is None or row.argmax >= min_agreement)


def _quality_lines(
    reference: Path | None, rows: Sequence[Quality], missed: Sequence[Quality], data: Sequence[Path]
) -> list[str]:
    if reference is None:
        return []
    source = ", ".join(path.name for path in data) or "generated inputs, which say nothing about quality on real ones"
    lines = [f"quality against {reference.name}, with {source}:"]
    return lines + [f"    {'MISSED: ' if row in missed else ''}{quality_text(row)}" for row in rows]


def _archs(path: Path) -> tuple[str, ...]:
    """The architectures that an artifact's kernels were compiled for; none for a model file."""
    if not path.is_dir() and not archive.is_archive(path):
        return ()
    return read_manifest(path).archs

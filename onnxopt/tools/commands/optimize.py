"""`onnxopt optimize`: options, progress, and a summary of the artifact as text or JSON."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt import pipeline
from onnxopt.artifact import lowered
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.summary import precision_lines, rewrites_text, totals_text
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.verification_text import verification_text
from onnxopt.tools.printable import printable


@click.command("optimize")
@click.argument("model", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Artifact folder to make; must not exist.")
@options.shape
@click.option(
    "--arch",
    "archs",
    multiple=True,
    help="GPU architecture to compile for (sm_90), or `none`; repeat for more. Default: all.",
)
@click.option("--no-verify", is_flag=True, help="Keep the result without comparing it with the original.")
@click.option(
    "--external-data/--no-external-data",
    default=None,
    help="Write weights beside the model or into it. Default: beside it above 2 GB.",
)
@click.option("--portable", is_flag=True, help="Also write model.portable.onnx, without com.microsoft operators.")
@click.option(
    "--ort-min", metavar="VERSION", help="Oldest ONNX Runtime that the artifact has to run on, as 1.25. Default: 1.21."
)
@click.option("--launch-choices", is_flag=True, help="Compile other launch shapes too, for `tune` to choose from.")
@click.option("--cache", type=Path, help="Folder of compiled kernels. Default: ~/.cache/onnxopt/kernels.")
@options.data
@options.emulate
@click.option(
    "--precision",
    type=click.Choice(lowered.DTYPES),
    help="Store the values of a float32 model in 16 bits where their ranges allow it. Default: its own precision.",
)
@click.option(
    "--calibrate",
    metavar="FILE.npz",
    multiple=True,
    type=Path,
    help="Your own inputs to measure ranges with for --precision, as for --data; repeat for more. Default: generated.",
)
@click.option(
    "--min-sqnr",
    metavar="DB",
    type=float,
    help="Signal to noise that every output has to keep with --precision; exit code 1 below it.",
)
@click.option("--keep-float", metavar="REGEX", help="Names of nodes that stay float32 with --precision.")
@options.json_option
def command(
    model: Path,
    output: Path,
    shapes: tuple[str, ...],
    archs: tuple[str, ...],
    no_verify: bool,
    external_data: bool | None,
    portable: bool,
    ort_min: str | None,
    launch_choices: bool,
    cache: Path | None,
    data: tuple[Path, ...],
    emulate: bool,
    precision: str | None,
    calibrate: tuple[Path, ...],
    min_sqnr: float | None,
    keep_float: str | None,
    as_json: bool,
) -> None:
    """Optimize MODEL into a verified artifact folder."""
    with progress.shown("Starting") as advance:
        artifact = pipeline.optimize(
            model,
            output,
            shapes=options.parse_shapes(shapes),
            archs=() if archs == ("none",) else archs or None,
            verify=not no_verify,
            external_data=external_data,
            portable=portable,
            ort_min=ort_min,
            launch_choices=launch_choices,
            progress=advance,
            cache=cache,
            data=data,
            emulate=emulate,
            precision=precision,
            calibrate=calibrate,
            min_sqnr=min_sqnr,
            keep_float=keep_float,
        )
    if as_json:
        options.print_json({"artifact": str(artifact.path), "manifest": artifact.manifest.model_dump(mode="json")})
    else:
        click.echo(printable(_text(artifact.path, artifact.manifest)))


def _text(path: Path, manifest: Manifest) -> str:
    places = sum(len(k.sites) for k in manifest.kernels)
    ops = sum(len(k.ops) * len(k.sites) for k in manifest.kernels)
    lines = [f"{manifest.source.name}: {ops} nodes fused into {places} calls of {len(manifest.kernels)} kernels"]
    lines += [f"rewritten: {text}" for text in [rewrites_text(manifest.rewrites)] if text]
    if manifest.kernels:
        lines.append(f"predicted: {totals_text(manifest.traffic)}")
    lines += [f"left out: {row.name}: {row.reason}" for row in manifest.left_out]
    lines += [f"note: {note}" for note in manifest.notes]
    lines.append(verification_text(manifest.verify, manifest.archs))
    lines += precision_lines(manifest.precision) if manifest.precision is not None else []
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in manifest.seconds.items())
    lines.append(f"wrote {path} in {sum(manifest.seconds.values()):.1f} s ({phases})")
    return "\n".join(lines)

"""`onnxopt refit`: other weights in the kernels of an artifact."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact import result_table
from onnxopt.printable import printable
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import columns, print_json
from onnxopt.tools.refitting import refit
from onnxopt.tools.refitting.options import RefitOptions


@click.command("refit")
@click.argument("artifact", type=Path)
@click.argument("weights", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Artifact to make.")
@options.click_options(RefitOptions)
@click.option("--force", is_flag=True, help="Replace the artifact at the output, once the new one is whole.")
@options.quiet
@options.json_option
def command(artifact: Path, weights: Path, output: Path, quiet: bool, as_json: bool, **given: Any) -> None:
    """Make an artifact with other WEIGHTS of the same network, in seconds: with the kernels of ARTIFACT.

    WEIGHTS is an ONNX file of the same network; or tensors by the names of its initializers, as .safetensors, a folder
    of them, or a state dict (.pt, .pth, .bin); or a LoRA adapter with its adapter_config.json. The result is verified
    against the model with the new weights.
    """
    with progress.shown(quiet) as advance:
        made = refit(artifact, weights, output, progress=advance, **given)
    if as_json:
        result, manifest = dataclasses.asdict(made.result), made.manifest.model_dump(mode="json")
        print_json({"artifact": str(made.path), "result": result, "manifest": manifest})
    else:
        width, colour = columns()
        seconds = sum(made.manifest.seconds.values())
        click.echo(printable(f"wrote {made.path} in {seconds:.1f} s, with the kernels of {artifact}"))
        click.echo("\n" + result_table.text(made.result, width, colour=colour))

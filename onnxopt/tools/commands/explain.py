"""`onnxopt explain`: what was fused and what was not, as text or JSON."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact.open import read_manifest
from onnxopt.tools import explain
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json
from onnxopt.tools.printable import printable

_JSON_FIELDS = {"rewrites", "kernels", "refusals", "left_out", "traffic", "notes"}  # of the manifest


@click.command("explain")
@click.argument("artifact", type=Path)
@click.option("--kernels", is_flag=True, help="Say of every kernel its entry points, and the shapes of its calls.")
@click.option("--all", "every_refusal", is_flag=True, help="List every node that was not fused, not just examples.")
@options.json_option
def command(artifact: Path, kernels: bool, every_refusal: bool, as_json: bool) -> None:
    """Say what ARTIFACT fuses, what that saves, and why other nodes were not fused."""
    manifest = read_manifest(artifact)
    if as_json:
        print_json(manifest.model_dump(mode="json", include=_JSON_FIELDS))
    else:
        click.echo(printable(explain.describe(manifest, kernels=kernels, every_refusal=every_refusal)))

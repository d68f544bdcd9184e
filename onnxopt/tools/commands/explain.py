"""`onnxopt explain`: what was fused and what was not, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from onnxopt.artifact import result
from onnxopt.artifact.open import read_manifest
from onnxopt.printable import printable
from onnxopt.tools import explain
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json

_JSON_FIELDS = {"rewrites", "kernels", "refusals", "left_out", "traffic", "notes"}  # of the manifest


@click.command("explain")
@click.argument("artifact", type=Path)
@click.option("--kernels", is_flag=True, help="Say of every kernel its entry points, and the shapes of its calls.")
@click.option("--all", "every_refusal", is_flag=True, help="List every node that was not fused, not just examples.")
@options.json_option
def command(artifact: Path, kernels: bool, every_refusal: bool, as_json: bool) -> None:
    """Say what ARTIFACT fuses, what that saves, and why other nodes were not fused."""
    if as_json:
        manifest = read_manifest(artifact)
        changed = dataclasses.asdict(result.read(artifact, manifest))
        print_json({"result": changed, **manifest.model_dump(mode="json", include=_JSON_FIELDS)})
    else:
        click.echo(printable(explain.explain(artifact, kernels=kernels, every_refusal=every_refusal)))

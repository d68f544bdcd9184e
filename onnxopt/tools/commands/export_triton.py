"""`onnxopt export-triton`: an artifact in a model repository of Triton Inference Server."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact.export.triton import CONFIG, export_triton
from onnxopt.tools.commands.options import json_option
from onnxopt.tools.commands.printing import print_result


@click.command("export-triton")
@click.argument("artifact", type=Path)
@click.argument("repository", type=Path)
@click.option("--name", help="Name of the model. Default: that of the original's file.")
@click.option("--tensorrt", is_flag=True, help="Run on the TensorRT provider, on the graph without fused functions.")
@click.option("--max-batch", type=int, default=8, show_default=True, help="Most requests that Triton runs together.")
@click.option("--instances", type=int, default=1, show_default=True, help="Sessions on each device.")
@click.option("--device", default="auto", show_default=True, help="Device to run on: auto, gpu or cpu.")
@click.option("--settings", help="File of providers/ to take, as h200. Default: cuda or cpu.")
@click.option("--mount", help="The repository's path as Triton sees it, as /models. Default: its path here.")
@json_option
def command(artifact: Path, repository: Path, as_json: bool, **options: object) -> None:
    """Write ARTIFACT into a model REPOSITORY of Triton Inference Server."""
    folder = export_triton(artifact, repository, **options)  # type: ignore[arg-type]
    print_result({"model": str(folder), "config": str(folder / CONFIG)}, f"wrote {folder}", as_json)

"""`onnxopt export-triton` and `export-ortpackage`: an artifact where deployments look for models."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.tools.commands.options import json_option, print_result


@click.command("export-triton")
@click.argument("artifact", type=Path)
@click.argument("repository", type=Path)
@click.option("--name", help="Of the model. Default: that of the original's file.")
@click.option("--tensorrt", is_flag=True, help="Run on the TensorRT provider, on the graph without fused functions.")
@click.option("--max-batch", type=int, default=8, show_default=True, help="Most requests that Triton runs together.")
@click.option("--instances", type=int, default=1, show_default=True, help="Sessions on each device.")
@click.option("--device", default="auto", show_default=True, help="auto, gpu or cpu.")
@click.option("--settings", help="File of providers/ to take, as in h200. Default: cuda or cpu.")
@click.option("--mount", help="The repository's path as Triton sees it, as in /models. Default: its path here.")
@json_option
def export_triton(artifact: Path, repository: Path, as_json: bool, **options: object) -> None:
    """Write ARTIFACT into a model REPOSITORY of Triton Inference Server."""
    from onnxopt.artifact.export import triton

    folder = triton.export(artifact, repository, **options)  # type: ignore[arg-type]
    print_result({"model": str(folder), "config": str(folder / triton.CONFIG)}, f"wrote {folder}", as_json)


@click.command("export-ortpackage")
@click.argument("artifact", type=Path)
@click.argument("folder", type=Path)
@click.option("--name", help="Of the component. Default: that of the original's file.")
@json_option
def export_ortpackage(artifact: Path, folder: Path, name: str | None, as_json: bool) -> None:
    """Write ARTIFACT as an ONNX Runtime model package, FOLDER.ortpackage, with a variant for each provider."""
    from onnxopt.artifact.export import ort_package

    written = ort_package.export(artifact, folder, name=name)
    print_result({"package": str(written)}, f"wrote {written}", as_json)

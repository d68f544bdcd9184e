"""`onnxopt export-triton`: an artifact in a model repository of Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxopt.artifact.export.triton import CONFIG, export_triton
from onnxopt.artifact.export.triton_options import TritonOptions
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_result


@click.command("export-triton")
@click.argument("artifact", type=Path)
@click.argument("repository", type=Path)
@options.click_options(TritonOptions)
@options.json_option
def command(artifact: Path, repository: Path, as_json: bool, **fields: Any) -> None:
    """Write ARTIFACT into a model REPOSITORY of Triton Inference Server."""
    folder = export_triton(artifact, repository, TritonOptions(**fields))
    print_result({"model": str(folder), "config": str(folder / CONFIG)}, f"wrote {folder}", as_json)

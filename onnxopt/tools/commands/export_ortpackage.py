"""`onnxopt export-ortpackage`: an artifact as a model package of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact.export.ort_package import export_ort_package
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_result


@click.command("export-ortpackage")
@click.argument("artifact", type=Path)
@click.argument("folder", type=Path, required=False)
@options.output("FOLDER")
@click.option("--name", help="Name of the component. Default: that of the original's file.")
@options.json_option
def command(artifact: Path, folder: Path | None, output: Path | None, name: str | None, as_json: bool) -> None:
    """Write ARTIFACT as an ONNX Runtime model package, FOLDER.ortpackage. It has a variant for each provider."""
    folder = options.one_output(folder, output, "FOLDER")
    package = export_ort_package(artifact, folder, name=name)
    print_result({"package": str(package)}, f"wrote {package}", as_json)

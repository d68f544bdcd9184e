"""`onnxopt unpack`: an artifact folder from one file."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact import archive
from onnxopt.tools.commands import options
from onnxopt.tools.commands.options import json_option
from onnxopt.tools.commands.printing import print_result


@click.command("unpack")
@click.argument("file", type=Path)
@click.argument("folder", type=Path, required=False)
@options.output("FOLDER")
@json_option
def command(file: Path, folder: Path | None, output: Path | None, as_json: bool) -> None:
    """Make the artifact FOLDER from FILE, with every hash checked. FOLDER must not exist."""
    folder = options.one_output(folder, output, "FOLDER")
    archive.unpack(file, folder)
    print_result({"artifact": str(folder)}, f"wrote {folder}", as_json)

"""`onnxopt pack`: an artifact as one file."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact import archive
from onnxopt.artifact.folder import hash_file
from onnxopt.tools.commands import options
from onnxopt.tools.commands.options import json_option
from onnxopt.tools.commands.printing import print_result


@click.command("pack")
@click.argument("artifact", type=Path)
@click.argument("file", type=Path, required=False)
@options.output("FILE")
@json_option
def command(artifact: Path, file: Path | None, output: Path | None, as_json: bool) -> None:
    """Write ARTIFACT as one FILE, a zip that is the same for the same artifact, byte for byte."""
    file = options.one_output(file, output, "FILE")
    written = hash_file(archive.pack(artifact, file))
    document = {"archive": str(file), "bytes": written.bytes, "sha256": written.sha256}
    print_result(document, f"wrote {file}, {written.bytes:,} bytes, sha256 {written.sha256}", as_json)

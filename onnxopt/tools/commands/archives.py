"""`onnxopt pack` and `onnxopt unpack`: an artifact as one file, and back."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.tools.commands.options import json_option, print_result


@click.command()
@click.argument("artifact", type=Path)
@click.argument("file", type=Path)
@json_option
def pack(artifact: Path, file: Path, as_json: bool) -> None:
    """Write ARTIFACT as one FILE, a zip that is the same for the same artifact, byte for byte."""
    from onnxopt.artifact import archive, package

    written = package.hash_file(archive.pack(artifact, file))
    document = {"archive": str(file), "bytes": written.bytes, "sha256": written.sha256}
    print_result(document, f"wrote {file}, {written.bytes:,} bytes, sha256 {written.sha256}", as_json)


@click.command()
@click.argument("file", type=Path)
@click.argument("folder", type=Path)
@json_option
def unpack(file: Path, folder: Path, as_json: bool) -> None:
    """Make the artifact FOLDER from FILE, every hash checked; it must not exist."""
    from onnxopt.artifact import archive

    archive.unpack(file, folder)
    print_result({"artifact": str(folder)}, f"wrote {folder}", as_json)

"""`onnxopt sign`: minisign's signature of an artifact's manifest."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact import signing
from onnxopt.tools.commands.options import json_option
from onnxopt.tools.commands.printing import print_result
from onnxopt.tools.secret_keys import read_secret_key


@click.command("sign")
@click.argument("artifact", type=Path)
@click.option("--key", type=Path, required=True, help="Secret key of `onnxopt keygen` or `minisign -G`.")
@click.option("--comment", help="A line that the signature covers. Default: time and file name.")
@click.option("--force", is_flag=True, help="Replace a signature that ARTIFACT has already.")
@json_option
def command(artifact: Path, key: Path, comment: str | None, force: bool, as_json: bool) -> None:
    """Sign the manifest of ARTIFACT, which holds the hash of every file, after checking every hash."""
    secret = read_secret_key(key)
    path = signing.sign(artifact, secret, trusted_comment=comment, replace=force)
    document = {"signature": str(path), "id": secret.public.name}
    print_result(document, f"signed {artifact} with key {secret.public.name}", as_json)

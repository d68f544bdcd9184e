"""`onnxopt verify-signature`: an artifact checked against a public key."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact.open import verify_signature
from onnxopt.tools.commands.options import Renamed, json_option
from onnxopt.tools.commands.printing import print_result


@click.command("verify-signature")
@click.argument("artifact", type=Path)
@click.option(
    "--key",
    "--public-key",
    "public_key",
    cls=Renamed,
    help="Public key: path of a .pub file, or its base64 line. Default: $ONNXOPT_PUBLIC_KEY.",
)
@json_option
def command(artifact: Path, public_key: str | None, as_json: bool) -> None:
    """Check the signature of ARTIFACT, a folder or an archive, then the hash of every file."""
    signature = verify_signature(artifact, public_key=public_key)
    print_result(
        {"artifact": str(artifact), "id": signature.key_id, "trusted_comment": signature.trusted_comment},
        f"{artifact}: signed by key {signature.key_id}, {signature.files} files as signed\n"
        f"trusted comment: {signature.trusted_comment}",
        as_json,
    )

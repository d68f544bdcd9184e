"""`onnxopt keygen`: a key pair in minisign's format."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact.folder import check_output, staging
from onnxopt.artifact.minisign import generate_key
from onnxopt.tools.commands.options import json_option
from onnxopt.tools.commands.printing import print_result
from onnxopt.tools.secret_keys import PASSWORD_VARIABLE, password_of


@click.command("keygen")
@click.argument("file", type=Path)
@click.option(
    "--no-password",
    is_flag=True,
    help=f"Do not encrypt the secret key. Default: ask for a password, or take it from ${PASSWORD_VARIABLE}.",
)
@json_option
def command(file: Path, no_password: bool, as_json: bool) -> None:
    """Make a key pair: the secret key FILE, and the public key FILE.pub."""
    public_file = file.with_name(f"{file.name}.pub")
    for path in (file, public_file):
        check_output(path)
    password = None if no_password else password_of(file, confirm=True)
    key = generate_key()
    secret, public = key.to_text(password), key.public.to_text()
    with staging(file, file=True) as part:
        part.touch(mode=0o600)
        part.write_text(secret, "utf-8")
    with staging(public_file, file=True) as part:
        part.write_text(public, "utf-8")
    line = public.splitlines()[1]
    print_result(
        {"secret_key": str(file), "public_key": str(public_file), "id": key.public.name, "key": line},
        f"wrote {file} (keep it secret) and {public_file}\npublic key: {line}",
        as_json,
    )

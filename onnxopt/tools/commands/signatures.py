"""`onnxopt keygen`, `sign` and `verify-signature`: minisign's signatures of an artifact's manifest."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onnxopt.errors import UsageError
from onnxopt.tools.commands.options import json_option, print_result

if TYPE_CHECKING:
    from onnxopt.artifact.signing import SecretKey

_PASSWORD = "ONNXOPT_KEY_PASSWORD"


@click.command()
@click.argument("file", type=Path)
@click.option("--no-password", is_flag=True, help=f"Do not encrypt it. Otherwise asks, or takes ${_PASSWORD}.")
@json_option
def keygen(file: Path, no_password: bool, as_json: bool) -> None:
    """Make a key pair: the secret key FILE, and the public one beside it, as FILE.pub."""
    from onnxopt.artifact import package, signing

    public_file = file.with_name(f"{file.name}.pub")
    for path in (file, public_file):
        package.check_output(path)
    password = None if no_password else _password(file, confirm=True)
    key = signing.generate()
    secret, public = key.to_text(password), key.public.to_text()
    with package.staging(file, file=True) as part:
        part.touch(mode=0o600)
        part.write_text(secret, "utf-8")
    with package.staging(public_file, file=True) as part:
        part.write_text(public, "utf-8")
    line = public.splitlines()[1]
    print_result(
        {"secret_key": str(file), "public_key": str(public_file), "id": key.public.name, "key": line},
        f"wrote {file} (keep it secret) and {public_file}\npublic key: {line}",
        as_json,
    )


@click.command()
@click.argument("artifact", type=Path)
@click.option("--key", type=Path, required=True, help="Secret key of `onnxopt keygen` or `minisign -G`.")
@click.option("--comment", help="A line that the signature covers. Default: time and file name.")
@click.option("--force", is_flag=True, help="Sign again, in place of the signature that is there.")
@json_option
def sign(artifact: Path, key: Path, comment: str | None, force: bool, as_json: bool) -> None:
    """Sign ARTIFACT's manifest, which holds the hash of every file; every hash is checked first."""
    from onnxopt.artifact import signing

    secret = read_secret_key(key)
    path = signing.sign_artifact(artifact, secret, trusted_comment=comment, replace=force)
    document = {"signature": str(path), "id": secret.public.name}
    print_result(document, f"signed {artifact} with key {secret.public.name}", as_json)


@click.command("verify-signature")
@click.argument("artifact", type=Path)
@click.option("--public-key", help="Path of a .pub file, or its base64 line. Default: $ONNXOPT_PUBLIC_KEY.")
@json_option
def verify_signature(artifact: Path, public_key: str | None, as_json: bool) -> None:
    """Check ARTIFACT, a folder or an archive: its signature, then every file's hash."""
    from onnxopt.artifact import signing
    from onnxopt.artifact.open import open_artifact

    key = signing.required_key(public_key)
    if key is None:
        raise UsageError(f"give the public key with --public-key or in {signing.PUBLIC_KEY_VARIABLE}")
    opened = open_artifact(artifact, public_key=public_key)
    print_result(
        {"artifact": str(artifact), "id": key.name, "trusted_comment": opened.signature},
        f"{artifact}: signed by key {key.name}, {len(opened.manifest.files)} files as signed\n"
        f"trusted comment: {opened.signature}",
        as_json,
    )


def read_secret_key(path: Path) -> SecretKey:
    """The secret key of a file, whose password is asked for where it has one."""
    from onnxopt.artifact import signing

    return signing.secret_key(path, _password(path) if signing.needs_password(path) else None)


def _password(file: Path, *, confirm: bool = False) -> str:
    """From the environment, or typed in; UsageError where neither can be."""
    if (given := os.environ.get(_PASSWORD)) is not None:
        return given
    if not sys.stdin.isatty():
        raise UsageError(f"{file}: needs a password; put it into the environment as {_PASSWORD}")
    return str(click.prompt(f"Password of {file}", hide_input=True, confirmation_prompt=confirm, err=True))

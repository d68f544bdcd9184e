"""Secret keys for commands: their passwords come from the environment or are typed in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from onnxopt.artifact import minisign
from onnxopt.artifact.minisign import SecretKey
from onnxopt.errors import UsageError

PASSWORD_VARIABLE = "ONNXOPT_KEY_PASSWORD"


def read_secret_key(path: Path) -> SecretKey:
    """The secret key of a file, with its password where the file has one."""
    return minisign.read_secret_key(path, password_of(path) if minisign.needs_password(path) else None)


def password_of(file: Path, *, confirm: bool = False) -> str:
    """The password of a key file. confirm: have it typed twice. UsageError without a terminal and the variable."""
    if (password := os.environ.get(PASSWORD_VARIABLE)) is not None:
        return password
    if not sys.stdin.isatty():
        raise UsageError(f"{file}: needs a password; put it into the environment as {PASSWORD_VARIABLE}")
    return str(click.prompt(f"Password of {file}", hide_input=True, confirmation_prompt=confirm, err=True))

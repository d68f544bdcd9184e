"""Results and errors as JSON or text on stdout."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import click

from onnxopt import text_table

SCHEMA_VERSION = 1  # of the JSON that commands print
_NARROWEST = 80  # columns, below which a table's figures would be cut


def columns() -> tuple[int, bool]:
    """The width to draw tables in, and whether in colour: where stdout is a terminal that shows their rules."""
    if not sys.stdout.isatty() or not sys.stdout.encoding.lower().startswith("utf"):
        return text_table.WIDTH, False
    return max(shutil.get_terminal_size().columns, _NARROWEST), True


def print_json(document: Mapping[str, Any]) -> None:
    """Print a result, or an error, with the schema version of what commands print."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2))


def print_result(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)

"""Results and errors as JSON or text on stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

SCHEMA_VERSION = 1  # of the JSON that commands print


def print_json(document: Mapping[str, Any]) -> None:
    """Print a result, or an error, with the schema version of what commands print."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2))


def print_result(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)

"""What several commands share: the option for JSON, and how results are printed."""

from __future__ import annotations

import json
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def print_result(document: dict[str, Any], text: str, as_json: bool) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else text)

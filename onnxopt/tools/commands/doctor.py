"""onnxopt doctor: what was found as a table or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onnxopt.tools.commands import options

if TYPE_CHECKING:
    from onnxopt.tools.doctor import Finding

_STYLES = {"ok": "green", "note": "cyan", "problem": "bold red"}


@click.command()
@click.argument("artifact", type=Path, required=False)
@options.json_option
@click.pass_context
def doctor(ctx: click.Context, artifact: Path | None, as_json: bool) -> None:
    """Look at this machine, and at how ARTIFACT runs on it, and say what to mend. Exit code 1 if there is a problem."""
    from onnxopt.tools.doctor import examine

    findings = examine(artifact)
    problems = sum(f.status == "problem" for f in findings)
    if as_json:
        options.print_json({"problems": problems, "findings": [dataclasses.asdict(f) for f in findings]})
    else:
        print_table(findings)
    ctx.exit(1 if problems else 0)


def print_table(findings: Sequence[Finding]) -> None:
    """One row a finding, the fix below what it mends."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        message = Text(finding.message)
        if finding.fix:
            message.append(f"\nfix: {finding.fix}", style="bold")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.check, message)
    console = Console(highlight=False)
    console.print(table)
    problems = sum(f.status == "problem" for f in findings)
    console.print(f"{problems} problem{'' if problems == 1 else 's'}" if problems else "no problems")

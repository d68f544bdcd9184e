"""`onnxopt doctor`: findings as a table or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from onnxopt import text_table
from onnxopt.artifact.summary import counted
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import columns, print_json
from onnxopt.tools.doctor import Finding, examine

_LOG_WIDTH = 10_000  # nobody searches a log for a sentence that is cut in the middle
_STYLES = {"ok": "green", "note": "cyan", "problem": "bold red"}


@click.command("doctor")
@click.argument("artifact", type=Path, required=False)
@options.timeout
@options.json_option
@click.pass_context
def command(ctx: click.Context, artifact: Path | None, timeout: float | None, as_json: bool) -> None:
    """Examine this machine, and how ARTIFACT runs on it; name each problem with a fix. Exit code 1 for problems."""
    findings = examine(artifact, timeout=timeout)
    problems = sum(f.status == "problem" for f in findings)
    if as_json:
        print_json({"problems": problems, "findings": [dataclasses.asdict(f) for f in findings]})
    else:
        _print_table(findings)
    ctx.exit(1 if problems else 0)


def _print_table(findings: Sequence[Finding]) -> None:
    """One row a finding, with the fix below the message."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        message = Text(finding.message)
        if finding.fix:
            message.append(f"\nfix: {finding.fix}", style="bold")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.check, message)
    width, colour = columns()
    click.echo(text_table.drawn([table], width if colour else _LOG_WIDTH, colour=colour))
    problems = sum(f.status == "problem" for f in findings)
    click.echo(counted(problems, "problem") if problems else "no problems")

"""`onnxopt check`: what is worse than before, as a table or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from onnxopt import option_fields, text_table
from onnxopt.artifact.summary import counted, limit_text, size_text
from onnxopt.errors import UsageError
from onnxopt.printable import printable
from onnxopt.runtime.gpus import catalogue
from onnxopt.text_table import ruled, styled
from onnxopt.tools import check
from onnxopt.tools.check import TOLERANCES, Row
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import columns, print_json

_TITLES = {
    "error": "error",
    "quality": "error against float32",
    "launches": "launches, predicted",
    "nodes": "nodes",
    "bytes": "bytes moved, predicted",
    "time": "ms, predicted",
    "size": "file size",
}
_STYLES = {"": "green", "WORSE": "bold red", "not compared": "dim"}
_DEFAULTS = ", ".join(f"{name} {percent:g}" for name, percent in TOLERANCES.items())


@click.command("check")
@click.argument("artifact", type=Path)
@click.option("--baseline", type=Path, help="An earlier artifact of the model, or a file that --save wrote.")
@click.option(
    "--tolerance",
    "tolerances",
    metavar="[NAME=]PERCENT",
    multiple=True,
    help=f"By how much a figure may be worse, or all of them; repeat. The error: percent of the limit. Default: "
    f"{_DEFAULTS}.",
)
@click.option("--save", type=Path, help="Write the figures of ARTIFACT, if none is worse; replaces such a file.")
@options.json_option
def command(
    artifact: Path, baseline: Path | None, tolerances: tuple[str, ...], save: Path | None, as_json: bool
) -> None:
    """Compare the figures of ARTIFACT with an earlier one's: is its error, a count, a time or its size worse?

    Exit code 1 if one is worse than the tolerance allows.
    """
    if baseline is None and save is None:
        raise UsageError("give --baseline to compare with, or --save to write one")
    allowed = _parsed(tolerances)
    if allowed and baseline is None:
        raise UsageError("--tolerance is for a comparison; give --baseline")
    now = check.figures(artifact)
    earlier = now if baseline is None else check.figures(baseline)
    rows = check.compare(earlier, now, allowed)
    worse = sum(row.state == "WORSE" for row in rows)
    if save is not None and not worse:
        check.save(now, save)
    if as_json:
        document = {"model": now.model, "worse": worse, "rows": [_document(row) for row in rows]}
        print_json({"artifact": str(artifact), "baseline": None if baseline is None else str(baseline), **document})
    elif baseline is not None:
        _print_table(now.model, rows, worse)
    if save is not None and not worse and not as_json:
        click.echo(f"wrote {printable(str(save))}")
    click.get_current_context().exit(1 if worse else 0)


def _parsed(texts: Sequence[str]) -> dict[str, float]:
    """Tolerances by name. UsageError for a text that is none."""
    parsed: dict[str, float] = {}
    for text in texts:
        name, stated, percent = text.rpartition("=")
        if stated and name not in TOLERANCES:
            raise UsageError(f"--tolerance {text}: {option_fields.not_one_of(name, TOLERANCES)}")
        try:
            value = float(percent.strip().removesuffix("%"))
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise UsageError(f"--tolerance {text}: expected a percentage, as in 5 or time=5")
        parsed |= {name: value} if stated else dict.fromkeys(TOLERANCES, value)
    return parsed


def _document(row: Row) -> dict[str, Any]:
    """A row as JSON, which has no infinity."""
    return {name: None if value == math.inf else value for name, value in row._asdict().items()}


def _print_table(model: str, rows: Sequence[Row], worse: int) -> None:
    """The table and a line that says how many figures are worse. Times: of the GPU that lost most alone, if many."""
    width, colour = columns()
    table = ruled(model, "baseline", "now", "change", "allowed", "", fine=colour)
    times, gpus = _shown_times(rows), catalogue()
    for row in rows:
        if row.name == "time" and row not in times:
            continue
        of = gpus[row.of].name.removeprefix("NVIDIA ") if row.of in gpus else row.of
        table.add_row(
            ", ".join(filter(None, (_TITLES[row.name], of))),
            *_texts(row),
            styled(row.state or "ok", _STYLES[row.state]),
        )
    line = f"{counted(worse, 'figure')} worse than the baseline" if worse else "nothing is worse than the baseline"
    click.echo(f"{text_table.drawn([table], width, colour=colour)}\n\n{printable(model)}: {line}")


def _shown_times(rows: Sequence[Row]) -> list[Row]:
    """The times that are worse, else the one that comes next to it."""
    times = [row for row in rows if row.name == "time"]
    compared = [row for row in times if row.state != "not compared"] or times
    worse = [row for row in compared if row.state == "WORSE"]
    return worse or sorted(compared, key=lambda row: -(row.after or 0) / (row.before or 1))[:1]


def _texts(row: Row) -> tuple[str, str, str, str]:
    """Baseline, artifact, change and the greatest change that is allowed."""
    before, after = (_text(row, value) for value in (row.before, row.after))
    if row.before is None or row.after is None or math.inf in (row.before, row.after):
        change = ""
    elif row.after == row.before:
        change = "-"
    elif row.name == "error":
        change = f"{100 * (row.after - row.before):+.2g} % of limit"
    elif row.before:
        change = f"{100 * (row.after / row.before - 1):+.2f} %"
    else:
        change = "from 0"
    return before, after, change, f"+{row.tolerance:g} %{' of limit' if row.name == 'error' else ''}"


def _text(row: Row, value: float | None) -> str:
    if value is None or math.isinf(value):
        return "unknown" if value is None else "fails"
    if row.name == "error":
        return limit_text(value).removesuffix(" of the limit").replace(" times the limit", " x")
    if row.name in ("bytes", "size"):
        return size_text(value)
    return f"{value:.3g}" if row.name in ("time", "quality") else f"{value:,.0f}"

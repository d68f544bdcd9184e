"""The result of optimizing as a table: in colour on a terminal and in a notebook, as plain text in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxopt import text_table
from onnxopt.artifact.result import FUSED, Change, Errors, PredictedTime, Result
from onnxopt.artifact.summary import counted, limit_text, size_text
from onnxopt.graph import signature
from onnxopt.printable import one_line
from onnxopt.text_table import ruled, styled
from onnxopt.verification.executed import EMULATED

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_OPERATORS = 6  # whose counts changed most
_GOOD, _BAD, _MUTED = "green", "red", "dim"
_STATES = {"passed": _GOOD, "FAILED": f"bold {_BAD}", "UNDECIDED": "yellow"}


def text(result: Result, width: int = text_table.WIDTH, *, colour: bool = False) -> str:
    """The tables, the sentence and the next command. width: columns. colour: with a terminal's escape sequences."""
    return text_table.drawn(_parts(result, colour), width, colour=colour)


def tables(result: Result, width: int = text_table.WIDTH, *, colour: bool = False) -> str:
    """The tables alone."""
    return text_table.drawn(_tables(result, colour), width, colour=colour)


def conclusion(result: Result, width: int = text_table.WIDTH, *, colour: bool = False) -> str:
    """The sentence and the next command alone."""
    return text_table.drawn(_conclusion(result), width, colour=colour)


def html(result: Result) -> str:
    """The same in the font of code, in colour."""
    page = text_table.console(120, colour=True)
    for part in _parts(result, fine=True):
        page.print(part)
    return page.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def errors_table(rows: Sequence[Errors], *, fine: bool = False) -> Table:
    """A row for each provider, with the library and without it. fine: rules of box-drawing characters."""
    titles = ("cases", "max abs", "mean abs", "max rel", "mean rel", "of limit")
    table = ruled("verified", "", *titles, fine=fine)
    for row in rows:
        provider, library = row.provider.removesuffix("ExecutionProvider"), "library" if row.library else "no library"
        name = provider if row.provider == EMULATED else f"{provider}, {library}"
        table.add_row(name, styled(row.status, _STATES[row.status]), str(row.cases), *_errors(row))
    return table


def beyond_the_limit(rows: Sequence[Errors]) -> list[RenderableType]:
    """Why outputs pass whose share of the limit is above 1, each output once."""
    reasons = {row.output: row.why_beyond for row in rows if row.why_beyond}
    return [styled(f"{one_line(name)} passes beyond the limit: {why}", _MUTED) for name, why in reasons.items()]


def predicted_table(times: Sequence[PredictedTime], name: str, width: int = text_table.WIDTH, *, colour: bool) -> str:
    """The predicted times of an artifact alone. name: its path."""
    table = ruled(name, "before", "after", "", fine=colour)
    for row in _times(times):
        table.add_row(*row)
    return text_table.drawn([table, *_thresholds(times)], width, colour=colour)


def _times(times: Sequence[PredictedTime]) -> Iterator[tuple[RenderableType, ...]]:
    """A row for each GPU."""
    for time in times:
        ratio = styled(f"{time.ratio:.2f} x", _GOOD if time.ratio >= 1 else _BAD)
        yield f"ms on {time.name}, predicted", f"{time.before_ms:.3g}", f"{time.after_ms:.3g}", ratio


def _thresholds(times: Sequence[PredictedTime]) -> Iterator[RenderableType]:
    """What is not known of the GPUs."""
    for note in dict.fromkeys(time.note for time in times if time.note):
        names = ", ".join(time.name for time in times if time.note == note)
        yield styled(f"{names}: thresholds {note}", _MUTED)


def _parts(result: Result, fine: bool) -> Iterator[RenderableType]:
    yield from _tables(result, fine)
    yield styled("")
    yield from _conclusion(result)


def _conclusion(result: Result) -> Iterator[RenderableType]:
    yield styled(result.sentence, "bold")
    yield styled(f"next: {result.next}", "cyan")


def _tables(result: Result, fine: bool) -> Iterator[RenderableType]:
    yield _changes(result, fine)
    if result.sizes and (result.bytes_moved.after or result.predicted):
        yield styled(f"predicted at {signature.describe(result.sizes)}", _MUTED)
    yield from _thresholds(result.predicted)
    if result.errors:
        yield styled("")
        yield errors_table(result.errors, fine=fine)
        yield from beyond_the_limit(result.errors)


def _changes(result: Result, fine: bool) -> Table:
    """Counts of operators, then figures of the whole model."""
    table = ruled(result.model, "before", "after", "", fine=fine)
    for name, change in _operators(result):
        table.add_row(one_line(name), str(change.before), str(change.after), f"{_difference(change):+d}")
    table.add_section()
    for row in _figures(result):
        table.add_row(*row)
    if result.library_bytes:
        table.add_row("library and kernels", "-", size_text(result.library_bytes), "")
    for cells in _times(result.predicted):
        table.add_row(*cells)
    return table


def _figures(result: Result) -> Iterator[tuple[str, str, str, str]]:
    """Name, before, after and change of the figures of the whole model that are known."""
    for name, change, shown in (
        ("nodes", result.nodes, "{:,}".format),
        ("launches, predicted", result.launches, "{:,}".format),
        ("bytes moved, predicted", result.bytes_moved, size_text),
        ("file size", result.file_bytes, size_text),
    ):
        if change.before is not None and change.after is not None:
            yield name, shown(change.before), shown(change.after), _percent(change)


def change_lines(result: Result) -> Iterator[str]:
    """The figures of the whole model as lines of text."""
    for name, before, after, percent in _figures(result):
        yield f"{name}: {before} -> {after}{f' ({percent})' if percent else ''}"


def _operators(result: Result) -> list[tuple[str, Change]]:
    """The operators whose counts changed most, the others together, and the calls of fused kernels."""
    fused = result.operators.get(FUSED)
    changed = [(op, c) for op, c in result.operators.items() if op != FUSED and c.before != c.after]
    changed.sort(key=lambda row: -abs(_difference(row[1])))
    rows, others = changed[:_OPERATORS], [change for _, change in changed[_OPERATORS:]]
    if others:
        sums = Change(sum(c.before or 0 for c in others), sum(c.after or 0 for c in others))
        rows.append((counted(len(others), "other operator"), sums))
    if fused is not None:
        rows.append((f"calls of {counted(result.kernels, 'fused kernel')}", fused))
    return rows


def _difference(change: Change) -> int:
    return (change.after or 0) - (change.before or 0)


def _percent(change: Change) -> str:
    percent = round(100 * _difference(change) / change.before) if change.before else 0
    return f"{percent:+d} %" if percent else ""


def _errors(row: Errors) -> Iterator[str]:
    """The texts of the four errors and of their share of the limit."""
    if row.of_limit is None:
        yield from ("not comparable", "", "", "", "")
    elif row.differing is not None:
        yield from (f"{row.differing:.2%} differ", "", "", "")
    elif row.max_abs is None:
        yield from ("equal", "", "", "")
    else:
        figures = (row.max_abs, row.mean_abs, row.max_rel, row.mean_rel)
        yield from ("" if figure is None else f"{figure:.1e}" for figure in figures)
    if row.of_limit:
        yield limit_text(row.of_limit).removesuffix(" of the limit").replace(" times the limit", " x")
    elif row.of_limit is not None:
        yield "0 %"

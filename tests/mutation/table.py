"""Tables of what verification finds of mutants, as docs/verify.md has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.mutation.campaign import BELOW, FOUND, Result


def lines(title: str, results: Sequence[Result], row_of: Callable[[Result], str]) -> Iterator[str]:
    """A table with a row for each value of row_of, in the order in which these come, and one of all."""
    yield f"| {title} | injected | above the limit | found | share |"
    yield "|---|---|---|---|---|"
    names = dict.fromkeys(row_of(r) for r in results)
    for name in names:
        yield _row(name, [r for r in results if row_of(r) == name])
    yield _row("all", results)


def _row(name: str, results: Sequence[Result]) -> str:
    above = [r for r in results if r.outcome != BELOW]
    found = sum(r.outcome == FOUND for r in above)
    share = f"{100 * found / len(above):.1f}".removesuffix(".0") + " %" if above else "-"
    return f"| {name} | {len(results)} | {len(above)} | {found} | {share} |"

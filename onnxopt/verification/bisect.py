"""Bisection: which of several changes break the limit, from runs with some of them enabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onnxopt.verification.reference import Check

Item = TypeVar("Item")


def bisect(
    items: Sequence[Item], failure_of: Callable[[Sequence[Item]], Check | None], name: Callable[[Item], str]
) -> dict[str, Check]:
    """The items that fail alone, and the smallest groups that fail only together, by name, each with a failed check.

    failure_of(enabled): runs with only these items enabled; a failed check, or None where all passed. Takes about
    2 log2(n) runs for each item at fault.
    """
    failure = failure_of(items) if items else None
    if failure is None:
        return {}
    if len(items) == 1:
        return {name(items[0]): failure}
    middle = len(items) // 2
    culprits = bisect(items[:middle], failure_of, name) | bisect(items[middle:], failure_of, name)
    # Neither half fails alone: rounding adds up over both, and no single item is at fault.
    return culprits or {name(item): failure for item in items}

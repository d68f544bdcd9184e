"""Bisection: which of several changes break the limit, from runs with some of them enabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onnxopt.verification.check import Check

Item = TypeVar("Item")
Failure = TypeVar("Failure")


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


def bisect_in_order(items: Sequence[str], failure_of: Callable[[Sequence[str]], Failure | None]) -> dict[str, Failure]:
    """The items that fail once they are added to those before them, each with its failure.

    For items that change what earlier ones made, so that they may do nothing alone. failure_of(enabled): the failure
    with only these items enabled, or None; without any item there is none, and without the items that are found too.
    Takes about log2(n) runs for each of these.
    """
    rest, failures = list(items), dict[str, Failure]()
    while rest and (failure := failure_of(rest)) is not None:
        passing, failing = 0, len(rest)  # numbers of items
        while failing - passing > 1:
            middle = (passing + failing) // 2
            check = failure_of(rest[:middle])
            passing, failing, failure = (middle, failing, failure) if check is None else (passing, middle, check)
        failures[rest.pop(failing - 1)] = failure
    return failures

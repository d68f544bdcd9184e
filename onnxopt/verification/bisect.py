"""Bisection: which of several changes break the limit, from runs with some of them enabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onnxopt.verification.check import Check

Item = TypeVar("Item")
Failure = TypeVar("Failure")


def bisect(
    items: Sequence[Item],
    failure_of: Callable[[Sequence[Item]], Check | None],
    name: Callable[[Item], str],
    *,
    failure: Check | None = None,
    still: Callable[[Sequence[int], int], None] = lambda pending, at_fault: None,
) -> dict[str, Check]:
    """The items that fail alone, and the smallest groups that fail only together, by name, each with a failed check.

    failure_of(enabled): runs with only these items enabled; a failed check, or None where all passed. Takes about
    2 log2(n) runs for each item at fault. failure: that of all items, where it is known. still: called before runs,
    with the sizes of the groups that fail and are not halved yet, and the number of items at fault so far.
    """
    failure = failure or (failure_of(items) if items else None)
    pending = [] if failure is None else [(items, failure)]
    at_fault: dict[str, Check] = {}
    while pending:
        still([len(group) for group, _ in pending], len(at_fault))
        group, failure = pending.pop(0)
        middle = len(group) // 2
        halves = (group[:middle], group[middle:]) if middle else ()
        failing = [(half, check) for half in halves if (check := failure_of(half)) is not None]
        pending += failing
        if not failing:  # one item; or neither half fails alone: rounding adds up over both, and no item is at fault
            at_fault |= {name(item): failure for item in group}
    return {name(item): at_fault[name(item)] for item in items if name(item) in at_fault}


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

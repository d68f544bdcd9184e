"""Contracting nodes of a graph: cycles are found exactly, against a search over the whole contracted graph."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from onnxopt.fusion.vertices import Vertices


def _makes_cycle(sources: dict[int, list[int]], groups: list[set[int]], nodes: set[int]) -> bool:
    """The same by definition: from outside `nodes` back into `nodes`, over whole groups."""
    group = {n: g for g in groups for n in g}
    seen: set[int] = set()
    pending = [s for n in nodes for s in sources[n] if s not in nodes]
    while pending:
        members = group[pending.pop()]
        if members <= seen:
            continue
        seen |= members
        reads = [s for m in members for s in sources[m]]
        if any(s in nodes for s in reads):
            return True
        pending += reads
    return False


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 40), reads=st.integers(1, 3))
def test_cycles_are_those_of_the_contracted_graph(seed: int, count: int, reads: int) -> None:
    rng = random.Random(seed)
    sources = {n: rng.sample(range(n), min(n, rng.randint(0, reads))) for n in range(count)}
    groups = [{n} for n in range(count)]
    vertices = Vertices(range(count), sources.__getitem__)
    for _ in range(count * 2):
        if len(groups) < 2:
            break
        chosen = rng.sample(groups, rng.choice([2, 2, 2, 3]) if len(groups) > 2 else 2)
        union = set().union(*chosen)
        expected = _makes_cycle(sources, groups, union)
        assert vertices.makes_cycle(sorted(union)) == expected
        if not expected:
            groups = [g for g in groups if g not in chosen] + [union]
            vertices.contract(sorted(union))


def test_contracting_again_changes_nothing() -> None:
    vertices = Vertices(range(4), {0: [], 1: [0], 2: [1], 3: [0]}.__getitem__)
    for _ in range(2):
        vertices.contract([0, 3])
    assert vertices.makes_cycle([0, 3, 2]) and not vertices.makes_cycle([0, 3, 1, 2])

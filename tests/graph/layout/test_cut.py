"""The cut of a network, against all cuts."""

from __future__ import annotations

import itertools
import random

import pytest

from onnxopt.graph.layout.min_cut import INFINITE, SINK, SOURCE, Network


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_least(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 7)
    edges = []
    network = Network()
    vertices = [SOURCE, SINK, *(network.vertex() for _ in range(count))]
    for _ in range(chance.randint(1, 20)):
        tail, head = chance.sample(vertices, 2)
        edges.append((tail, head, chance.choice((1, 2, 5, 9, INFINITE)), chance.choice((0, 0, 3))))
        network.edge(*edges[-1])

    def cost(side: set[int]) -> int:
        return sum(c * (a in side and b not in side) + r * (b in side and a not in side) for a, b, c, r in edges)

    sides = [
        {SOURCE, *chosen} for size in range(count + 1) for chosen in itertools.combinations(vertices[2:], size)
    ]  # fmt: skip
    found = network.source_side()
    if min(map(cost, sides)) < INFINITE:
        assert cost(found) == min(map(cost, sides))
        assert len(found) == min(len(side) for side in sides if cost(side) == cost(found))

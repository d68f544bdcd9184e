"""The graph of a model's nodes in which some nodes count as one vertex, and whether one more contraction makes a cycle.

A topological order of the vertices is kept up to date as nodes are contracted, so that only the vertices between the
first and the last contracted one are looked at (Pearce and Kelly, A dynamic topological sort algorithm for directed
acyclic graphs, ACM JEA 11, 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

Node = TypeVar("Node")


class Vertices(Generic[Node]):
    """nodes: in topological order. sources: the nodes that a node reads from; they come before it."""

    def __init__(self, nodes: Iterable[Node], sources: Callable[[Node], Iterable[Node]]):
        self._at: list[Node | None] = list(nodes)  # by position one node of the vertex, None where a vertex was
        self._position = {node: k for k, node in enumerate(self._at) if node is not None}
        self._members: dict[Node, Sequence[Node]] = {}
        self._sources = sources

    def contract(self, nodes: Sequence[Node]) -> None:
        """Let these nodes count as one vertex from now on. The nodes must be whole vertices and make no cycle."""
        places = sorted({self._position[node] for node in nodes})
        self._members.update(dict.fromkeys(nodes, nodes))
        if len(places) == 1:
            return
        first, last = places[0], places[-1]
        before = self._ancestors(nodes, first)
        inside = set(nodes)
        others = [n for n in self._at[first : last + 1] if n is not None and n not in inside]
        order = [n for n in others if n in before]
        order += [nodes[0], *(n for n in others if n not in before)]
        self._at[first : last + 1] = [*order, *[None] * (last + 1 - first - len(order))]
        for place, node in enumerate(order, first):
            for member in self._members.get(node, (node,)):
                self._position[member] = place

    def makes_cycle(self, nodes: Collection[Node]) -> bool:
        """Whether a path leads from one of these nodes to another one through a vertex that is not among them.

        The nodes must be whole vertices: all nodes of every contraction that they touch.
        """
        inside = set(nodes)
        first = min(self._position[node] for node in inside)
        for vertex in self._ancestors(nodes, first):
            if any(s in inside for member in self._members.get(vertex, (vertex,)) for s in self._sources(member)):
                return True
        return False

    def _ancestors(self, nodes: Collection[Node], first: int) -> set[Node]:
        """All nodes of the vertices outside `nodes` from which a path leads to these, down to position `first`."""
        inside = set(nodes)
        seen: set[Node] = set()
        pending = [s for n in inside for s in self._sources(n) if s not in inside]
        while pending:
            node = pending.pop()
            if node in seen or self._position[node] < first:
                continue
            members = self._members.get(node, (node,))
            seen.update(members)
            pending += [s for m in members for s in self._sources(m) if s not in inside]
        return seen

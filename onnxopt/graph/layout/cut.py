"""A least cut of a network, by Dinic's algorithm with integer capacities."""

from __future__ import annotations

import collections

SOURCE, SINK = 0, 1
INFINITE = 1 << 60


class Network:
    """A directed network. Vertices are numbers; SOURCE and SINK are there from the start."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # vertex -> its edges; edge e ^ 1 is the way back of edge e
        self._head: list[int] = []
        self._capacity: list[int] = []

    def vertex(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int, back: int = 0) -> None:
        """An edge, and one of capacity `back` in the other direction."""
        for a, b, c in ((tail, head, capacity), (head, tail, back)):
            self._edges[a].append(len(self._head))
            self._head.append(b)
            self._capacity.append(c)

    def source_side(self) -> set[int]:
        """The vertices on the source's side of a least cut; the smallest such set. Uses up the capacities."""
        while (levels := self._levels())[SINK] >= 0:
            self._saturate(levels)
        return {vertex for vertex, level in enumerate(levels) if level >= 0}

    def _levels(self) -> list[int]:
        """The distance of each vertex from the source over edges with capacity left, -1 where there is no way."""
        levels = [-1] * len(self._edges)
        levels[SOURCE] = 0
        queue = collections.deque([SOURCE])
        while queue:
            vertex = queue.popleft()
            for e in self._edges[vertex]:
                head = self._head[e]
                if self._capacity[e] > 0 and levels[head] < 0:
                    levels[head] = levels[vertex] + 1
                    queue.append(head)
        return levels

    def _saturate(self, levels: list[int]) -> None:
        """Send flow along shortest ways until each of them has a full edge."""
        tried = [0] * len(self._edges)  # by vertex: how many of its edges lead no further
        path: list[int] = []
        vertex = SOURCE
        while True:
            if vertex == SINK:
                least = min(self._capacity[e] for e in path)
                for e in path:
                    self._capacity[e] -= least
                    self._capacity[e ^ 1] += least
                path, vertex = [], SOURCE
            elif tried[vertex] == len(self._edges[vertex]):
                if not path:
                    return
                vertex = self._head[path.pop() ^ 1]
                tried[vertex] += 1
            else:
                e = self._edges[vertex][tried[vertex]]
                head = self._head[e]
                if self._capacity[e] > 0 and levels[head] == levels[vertex] + 1:
                    path.append(e)
                    vertex = head
                else:
                    tried[vertex] += 1

"""A least cut of a network, by networkx."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it takes longer than most cuts, and most models have no convolution
    import networkx as nx

SOURCE, SINK = 0, 1
INFINITE = 1 << 60


class Network:
    """A directed network. Vertices are numbers; SOURCE and SINK are there from the start."""

    def __init__(self) -> None:
        import networkx as nx

        self._graph: nx.DiGraph[int] = nx.DiGraph()
        self._graph.add_nodes_from((SOURCE, SINK))

    def vertex(self) -> int:
        number: int = self._graph.number_of_nodes()
        self._graph.add_node(number)
        return number

    def edge(self, tail: int, head: int, capacity: int, back: int = 0) -> None:
        """An edge, and one of capacity `back` in the other direction. Edges between the same vertices add up."""
        for a, b, c in ((tail, head, capacity), (head, tail, back)):
            before = self._graph.edges[a, b]["capacity"] if self._graph.has_edge(a, b) else 0
            self._graph.add_edge(a, b, capacity=before + c)

    def source_side(self) -> set[int]:
        """The vertices on the source's side of a least cut; the smallest such set."""
        import networkx as nx
        from networkx.algorithms.flow import dinitz

        residual = dinitz(self._graph, SOURCE, SINK)
        residual_graph: nx.DiGraph[int] = nx.DiGraph(
            (a, b) for a, b, e in residual.edges(data=True) if e["capacity"] > e["flow"]
        )
        residual_graph.add_node(SOURCE)
        return {SOURCE, *nx.descendants(residual_graph, SOURCE)}

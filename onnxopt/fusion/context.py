"""Context: what the kinds share while they search one graph for regions: shapes, opsets, and nodes already taken."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir as ir

from onnxopt.fusion import boundary, eligibility
from onnxopt.fusion.vertices import Vertices
from onnxopt.graph.match import reads
from onnxopt.graph.shapes.shapes import Shapes

M = TypeVar("M")
Lowering = Callable[
    [Sequence[ir.Node], Sequence[ir.Value], Sequence[ir.Value], Mapping[str, int], Shapes], M
]  # nodes, inputs, outputs, opsets, shapes -> the program of a kernel for the nodes; ValueError if there is none


_MAX_LOWERED = 4096  # results of lowering that are kept; a search comes back to recent ones only


class Context:
    """One graph, and the regions found in it so far.

    order: node -> its position in topological order. host: values that ONNX Runtime computes on the CPU. spilled: the
    node names of every region whose kernel spilled registers when it was compiled. cuda: whether kernels run on GPUs
    too; without them, nodes that the CPU provider fuses itself stay with the provider.
    """

    def __init__(
        self,
        graph: ir.Graph,
        opsets: Mapping[str, int],
        shapes: Shapes,
        host: set[ir.Value],
        spilled: Collection[frozenset[str]] = (),
        *,
        cuda: bool = True,
    ):
        self.graph, self.opsets, self.shapes, self.host, self.cuda = graph, opsets, shapes, host, cuda
        self.order = {node: k for k, node in enumerate(graph)}
        self._producers = {node: tuple(self._sources(node)) for node in graph}
        self._vertices = Vertices(graph, self._producers.__getitem__)
        self._owned: set[ir.Node] = set()
        self._spilled = spilled
        self._lowered: collections.OrderedDict[tuple[Any, ...], Any] = collections.OrderedDict()  # oldest first
        self._reasons: dict[ir.Node, str | None] = {}
        self._readers: dict[ir.Value, tuple[ir.Node, ...]] = {}

    def take(self, regions: Collection[Sequence[ir.Node]]) -> None:
        """Mark the nodes of these regions as taken, so that later searches leave the nodes alone."""
        for nodes in regions:
            self._owned.update(nodes)
            self.contract(nodes)

    def is_owned(self, node: ir.Node) -> bool:
        """Whether the node belongs to a region of another kind."""
        return node in self._owned

    def lowered(
        self, lower: Lowering[M], nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> M:
        """The result of `lower` for these nodes, or the ValueError that `lower` raises. Recent results are cached."""
        key = (lower, tuple(nodes), tuple(inputs), tuple(outputs))
        if key not in self._lowered:
            try:
                self._lowered[key] = lower(nodes, inputs, outputs, self.opsets, self.shapes)
            except ValueError as error:
                self._lowered[key] = error
            if len(self._lowered) > _MAX_LOWERED:
                self._lowered.popitem(last=False)
        self._lowered.move_to_end(key)
        result = self._lowered[key]
        if isinstance(result, ValueError):
            raise result.with_traceback(None)  # each raise appends to the traceback, whose frames keep their locals
        return result  # type: ignore[no-any-return]

    def why_not(self, node: ir.Node) -> str | None:
        """The reason why no kernel should run this elementwise or index node, None where a kernel can."""
        if node not in self._reasons:
            self._reasons[node] = eligibility.why_not(node, self.opsets, self.shapes, self.host, cuda=self.cuda)
        return self._reasons[node]

    def readers(self, value: ir.Value) -> tuple[ir.Node, ...]:
        """The nodes that read a value. onnx_ir makes a new tuple of them in every call."""
        if value not in self._readers:
            self._readers[value] = tuple(value.consumers())
        return self._readers[value]

    def outputs_of(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """Values that a node outside or the graph's interface reads, in order of definition."""
        return boundary.outputs_of(nodes, self.readers)

    def spills(self, nodes: Collection[ir.Node]) -> bool:
        """Whether these nodes hold more than half of a region whose kernel spilled registers."""
        if not self._spilled:
            return False
        names = {str(n.name) for n in nodes}
        return any(2 * len(names & region) > len(region) for region in self._spilled)

    def contract(self, nodes: Sequence[ir.Node]) -> None:
        """Treat these nodes as one vertex in later searches for cycles."""
        self._vertices.contract(nodes)

    def makes_cycle(self, nodes: Collection[ir.Node]) -> bool:
        """Whether a path leads from these nodes through a node outside of them back to one of them.

        One kernel for such nodes would have to wait for its own result. The nodes must be whole vertices: all nodes of
        every contraction of which they hold one.
        """
        return self._vertices.makes_cycle(nodes)

    def _sources(self, node: ir.Node) -> Iterator[ir.Node]:
        for value in reads(node):
            producer = value.producer()
            if producer is not None and producer in self.order:
                yield producer

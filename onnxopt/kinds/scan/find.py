"""Scan regions: a CumSum with everything elementwise before and after it that has its shape.

    y = f(CumSum(g(x, ...), axis), x, ...)

ONNX Runtime's CUDA kernel sums up every element's row from its beginning, so one CumSum alone is worth a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Search
from onnxopt.fusion.operands import apply_operator, constant, storage
from onnxopt.fusion.regions import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.lower import immediate
from onnxopt.kinds.rowwise.grid import Grid
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import Program, without_dead_code
from onnxopt.program.scan import SUMMED, ScanProgram

OPERATOR = ("", "CumSum")
_SINCE = 11
# Fewer elements are not worth a kernel: index arithmetic on the host, and the like.
_FEWEST_ELEMENTS = 32


def find(search: Search) -> tuple[list[Region], list[Refusal]]:
    """A region for every CumSum that a kernel can run, and why others stay."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    taken: set[ir.Node] = set()
    for node in search.order:
        if not is_scan(node) or search.is_taken(node):
            continue
        reason = why_not(node, search)
        if reason is not None:
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        region = _Growth(search, node, taken).region()
        taken.update(region.nodes)
        search.contract(region.nodes)
        regions.append(region)
    return regions, refusals


def is_scan(node: ir.Node) -> bool:
    """Whether a node is a CumSum."""
    return (node.domain, node.op_type) == OPERATOR


def why_not(node: ir.Node, search: Search) -> str | None:
    """Why no kernel runs this CumSum, or None where one does."""
    shapes, x = search.shapes, node.inputs[0]
    if search.opsets.get("", 0) < _SINCE or x is None or len(node.inputs) != 2:
        return "it is not the CumSum of opset 11 and later"
    dims, dtype = shapes.dims(x), shapes.dtype(x)
    if not dims:
        return f"the rank of {x.name} is unknown, or 0"
    if dtype is None or dtype.name not in SUMMED:
        return f"CumSum of {dtype.name if dtype else 'an unknown dtype'} is not in the table"
    told = constant(node.inputs[1])
    if told is None:
        return "its axis is not constant"
    if not -len(dims) <= int(told.numpy().item()) < len(dims):
        return f"its axis is not one of rank {len(dims)}"
    if any(v in search.host for v in (x, *node.outputs)):
        return "shape arithmetic: it belongs on the CPU"
    if x.const_value is not None:
        return "all operands are constants"
    elements = shapes.elements(x)
    if elements is not None and elements < _FEWEST_ELEMENTS:
        return f"{elements} elements are too few for a kernel"
    if dims[_axis(node, len(dims))] == 1:
        return "a row has one element"
    return None


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> ScanProgram:
    """The program of nodes in topological order, one CumSum among them, that read `inputs` (and constants) and define
    `outputs`. Raises ValueError where they cannot be one."""
    (scan,) = (n for n in nodes if is_scan(n))
    summed, total = scan.inputs[0], scan.outputs[0]
    dims = None if summed is None else shapes.dims(summed)
    if summed is None or not dims:
        raise ValueError(f"{scan.name} has no operand of known rank")
    elementwise = [n for n in nodes if n is not scan]
    dtype = storage(summed, shapes).compute
    before = _program(elementwise, inputs, [(summed, dtype)], None, opsets, shapes)
    stored = [(v, storage(v, shapes).name) for v in outputs]
    after = _program(elementwise, inputs, stored, total, opsets, shapes)
    grid = grid_of(scan, shapes)
    program = ScanProgram(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=tuple(name for _, name in stored),
        rank=len(dims),
        axis=grid.first,
        exclusive=bool(scan.attributes.get_int("exclusive", 0)),
        reverse=bool(scan.attributes.get_int("reverse", 0)),
        element=before,
        output=after,
        rows=tuple(grid.varies_by_row_at_most(shapes.dims(v)) for v in inputs),
    )
    program.verify()
    return program


def grid_of(scan: ir.Node, shapes: Shapes) -> Grid:
    """The rows that a CumSum goes along."""
    x = scan.inputs[0]
    dims = None if x is None else shapes.dims(x)
    if x is None or dims is None:
        raise ValueError(f"{scan.name} has no operand of known rank")
    axis = _axis(scan, len(dims))
    return Grid(dims, axis, axis + 1, x)


def _axis(scan: ir.Node, rank: int) -> int:
    tensor = constant(scan.inputs[1])
    if tensor is None:
        raise ValueError(f"the axis of {scan.name} is not constant")
    return int(tensor.numpy().item()) % rank


def _program(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    results: Sequence[tuple[ir.Value, str]],
    total: ir.Value | None,
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Program:
    """What makes `results`, each with the dtype it is handed on in, of the inputs and then the running total, if it is
    given."""
    dtypes = [storage(v, shapes).name for v in inputs]
    if total is not None:
        dtypes.append(storage(total, shapes).compute)
    builder = Builder(tuple(dtypes))
    read = [*inputs, *([total] if total is not None else ())]
    known: dict[ir.Value, Expr] = dict(zip(read, builder.inputs, strict=True))
    depends: dict[ir.Value, frozenset[int]] = {v: frozenset([k]) for k, v in enumerate(read)}
    for node in nodes:
        operands = [v for v in node.inputs if v is not None]
        for value in operands:
            if value not in known and constant(value) is not None:
                known[value], depends[value] = immediate(builder, value, shapes)[0], frozenset()
        if all(v in known for v in operands):  # else it comes behind a total that is not given
            known[node.outputs[0]] = apply_operator(node, known, opsets, shapes)
            depends[node.outputs[0]] = frozenset().union(*(depends[v] for v in operands))
    if any(v not in known for v, _ in results):
        raise ValueError("what is summed up depends on the sum")
    program = Program(
        inputs=tuple(dtypes),
        outputs=tuple(dtype for _, dtype in results),
        code=tuple(builder.code),
        results=tuple(known[v].id for v, _ in results),
        depends=tuple(tuple(sorted(depends[v])) for v, _ in results),
        ranks=(0,) * len(results),
    )
    return without_dead_code(program)


class _Growth:
    """One region while it grows from a CumSum over its elementwise neighbours."""

    def __init__(self, search: Search, scan: ir.Node, taken: set[ir.Node]):
        self._search, self._taken = search, taken
        self._domain = scan.outputs[0]
        self.nodes = [scan]

    def region(self) -> Region:
        """The region, grown until no neighbour fits any more."""
        refused: set[ir.Node] = set()
        while fitting := next((n for n in self._neighbours(refused) if self._take(n, refused)), None):
            refused.clear()  # what would have closed a cycle may not any more
            assert fitting in self.nodes
        inputs, outputs = self.inputs(), self.outputs()
        moved = cost.of_region(self.nodes, inputs, outputs, self._search.shapes)
        region = Region(tuple(self.nodes), tuple(inputs), tuple(outputs), moved, Kind.SCAN)
        region.verify()
        return region

    def _neighbours(self, refused: set[ir.Node]) -> list[ir.Node]:
        """Elementwise nodes that read what the region computes, then those that compute what it reads."""
        order = self._search.order
        after = {u for n in self.nodes for v in n.outputs for u in v.consumers()}
        before = {p for n in self.nodes for v in n.inputs if v is not None and (p := v.producer()) is not None}
        free = [n for n in after | before if n in order and n not in self._taken | refused | set(self.nodes)]
        return sorted((n for n in free if not self._search.is_taken(n)), key=lambda n: (n not in after, order[n]))

    def _take(self, node: ir.Node, refused: set[ir.Node]) -> bool:
        search, before = self._search, self.nodes
        if (
            eligibility.is_elementwise(node)
            and eligibility.why_not(node, search.opsets, search.shapes, search.host) is None
            and search.shapes.same(node.outputs[0], self._domain)
        ):
            self.nodes = sorted([*before, node], key=search.order.__getitem__)
            if self._fits():
                return True
        self.nodes = before
        refused.add(node)
        return False

    def _fits(self) -> bool:
        """Whether the nodes can and should be one kernel."""
        inputs, outputs = self.inputs(), self.outputs()
        if len(inputs) + len(outputs) > cost.MAX_OPERANDS or len(self.nodes) > cost.MAX_NODES:
            return False
        if self._search.makes_cycle(self.nodes):
            return False
        try:
            program = lower(self.nodes, inputs, outputs, self._search.opsets, self._search.shapes)
        except ValueError:
            return False
        return program.cost <= cost.MAX_COST

    def inputs(self) -> list[ir.Value]:
        """Values read from outside, in order of first use; the axis and constants of one element left out."""
        inside = set(self.nodes)
        read = dict.fromkeys(v for n in self.nodes for v in n.inputs if v is not None)
        return [v for v in read if v.producer() not in inside and constant(v) is None]

    def outputs(self) -> list[ir.Value]:
        """Values that something outside reads, in order of definition."""
        inside = set(self.nodes)
        values = (v for n in self.nodes for v in n.outputs)
        return [v for v in values if v.is_graph_output() or any(u not in inside for u in v.consumers())]

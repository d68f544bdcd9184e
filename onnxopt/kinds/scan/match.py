"""Scan regions: a CumSum with the elementwise nodes of its shape before and after it.

    y = f(CumSum(g(x, ...), axis), x, ...)

ONNX Runtime's CUDA kernel sums every element's row from the beginning, so one CumSum alone is worth a kernel.
"""

from __future__ import annotations

import heapq

import onnx_ir as ir

from onnxopt.costs.rowwise import numbers
from onnxopt.fusion import boundary, cost, eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.operands import constant
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.scan.lower import axis_of, is_scan, lower
from onnxopt.program.scan import SUMMED

_SINCE = 11
_MIN_ELEMENTS = numbers().min_elements
_NEAREST = 256  # neighbours that a region looks at; more read one tensor only in graphs of thousands of like nodes


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every CumSum that a kernel can run, and refusals of the others."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    owned: set[ir.Node] = set()
    for node in context.order:
        if not is_scan(node) or context.is_owned(node):
            continue
        reason = why_not(node, context)
        if reason is not None:
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        region = _Growth(context, kind, node, owned).region()
        owned.update(region.nodes)
        context.contract(region.nodes)
        regions.append(region)
    return regions, refusals


def why_not(node: ir.Node, context: Context) -> str | None:
    """The reason why no kernel can run this CumSum, None where a kernel can."""
    shapes, x = context.shapes, node.inputs[0]
    if context.opsets.get("", 0) < _SINCE or x is None or len(node.inputs) != 2:
        return f"CumSum can be fused from opset {_SINCE} on"
    dims, dtype = shapes.dims(x), shapes.dtype(x)
    if not dims:
        return f"The rank of `{x.name}` is unknown or 0"
    if dtype is None or dtype.name not in SUMMED:
        return f"The operator table has no CumSum of {dtype.name if dtype else 'an unknown dtype'} (`{x.name}`)"
    axis, tensor = node.inputs[1], constant(node.inputs[1])
    if tensor is None:
        return f"CumSum's axis `{axis.name if axis else ''}` is computed at run time; only a constant axis is fused"
    if not -len(dims) <= (number := int(tensor.numpy().item())) < len(dims):
        return f"CumSum's axis {number} does not exist in a tensor of rank {len(dims)}"
    if any(v in context.host for v in (x, *node.outputs)):
        return eligibility.runs_on_host(node)
    if x.const_value is not None:
        return "All inputs of CumSum are constants"
    elements = shapes.elements(x)
    if elements is not None and elements < _MIN_ELEMENTS:
        return f"`{x.name}` has {elements} elements, too few for a kernel of its own"
    if dims[axis_of(node, len(dims))] == 1:
        return "CumSum works along a dim of size 1"
    return None


class _Growth:
    """One region while it grows from a CumSum to its elementwise neighbours."""

    def __init__(self, context: Context, kind: Kind, scan: ir.Node, owned: set[ir.Node]):
        self._context, self._kind, self._owned = context, kind, owned
        self._domain = scan.outputs[0]
        self.nodes = [scan]

    def region(self) -> Region:
        """The region, grown until no neighbour fits."""
        refused: set[ir.Node] = set()
        while fitting := next((n for n in self._neighbours(refused) if self._take(n, refused)), None):
            refused.clear()  # a node that would have made a cycle may fit now
            assert fitting in self.nodes
        inputs, outputs = boundary.inputs_of(self.nodes), self._context.outputs_of(self.nodes)
        moved = cost.region_traffic(self.nodes, inputs, outputs, self._context.shapes)
        program = self._context.lowered(lower, self.nodes, inputs, outputs)
        region = Region(tuple(self.nodes), tuple(inputs), tuple(outputs), moved, self._kind, program)
        region.verify()
        return region

    def _neighbours(self, refused: set[ir.Node]) -> list[ir.Node]:
        """Readers of the region's values, then producers of its inputs, each in topological order."""
        order = self._context.order
        consumers = {u for n in self.nodes for v in n.outputs for u in self._context.readers(v)}
        producers = {p for n in self.nodes for v in n.inputs if v is not None and (p := v.producer()) is not None}
        inside = set(self.nodes)
        fresh = (n for n in consumers | producers if n in order and n not in inside and n not in refused)
        free = (n for n in fresh if n not in self._owned and not self._context.is_owned(n))
        return heapq.nsmallest(_NEAREST, free, key=lambda n: (n not in consumers, order[n]))

    def _take(self, node: ir.Node, refused: set[ir.Node]) -> bool:
        context, before = self._context, self.nodes
        if (
            eligibility.is_elementwise(node)
            and context.why_not(node) is None
            and context.shapes.same(node.outputs[0], self._domain)
        ):
            self.nodes = sorted([*before, node], key=context.order.__getitem__)
            if self._fits():
                return True
        self.nodes = before
        refused.add(node)
        return False

    def _fits(self) -> bool:
        """Whether the nodes can and should be one kernel."""
        inputs, outputs = boundary.inputs_of(self.nodes), self._context.outputs_of(self.nodes)
        if len(inputs) + len(outputs) > cost.MAX_OPERANDS or len(self.nodes) > cost.MAX_NODES:
            return False
        if self._context.makes_cycle(self.nodes):
            return False
        try:
            program = self._context.lowered(lower, self.nodes, inputs, outputs)
        except ValueError:
            return False
        return program.cost <= cost.MAX_COST

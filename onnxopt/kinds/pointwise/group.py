"""Groups of nodes that one pointwise kernel will run, while the search for regions merges them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.costs.fusion import numbers as fusion_numbers
from onnxopt.costs.layout import numbers
from onnxopt.fusion import boundary, cost, index_ops
from onnxopt.fusion.context import Context
from onnxopt.fusion.operands import looks_up
from onnxopt.graph import layout
from onnxopt.graph.codes import is_quantize
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.hardware import ACCESS_BYTES

_SIXTEEN_BIT = ("float16", "bfloat16")
_SLOW_IN_CHANNELS_LAST = frozenset(numbers().moved_alone)
_IN_PLACE = frozenset({"Slice", "Concat", "Expand"})  # index operations that keep neighbouring elements neighbours


@dataclasses.dataclass(eq=False)
class Group:
    """Nodes that one kernel will run, in topological order; they stay the same.

    domain: a value that has the shape of the kernel's domain. reads: values that the group reads from outside;
    parameters of index operations are left out. writes: values that nodes outside the group read. Both in any order.
    """

    context: Context
    nodes: Sequence[ir.Node]
    domain: ir.Value
    cost: int
    reads: Sequence[ir.Value]
    writes: Sequence[ir.Value]
    has_index_nodes: bool

    @functools.cached_property
    def outputs(self) -> Sequence[ir.Value]:
        """The values of `writes` in order of definition."""
        return self.context.outputs_of(self.nodes)

    @functools.cached_property
    def inputs(self) -> Sequence[ir.Value]:
        """The values of `reads` in order of first use."""
        return boundary.inputs_of(self.nodes, index_ops.data_inputs)

    @functools.cached_property
    def moving_nodes(self) -> int:
        """The number of kernels that run these nodes without fusion."""
        return sum(not index_ops.is_view(n) for n in self.nodes)

    @property
    def runs_in_runtime(self) -> bool:
        """Whether this is a single operator that reads several tensors, which ORT often fuses with its neighbours."""
        return self.moving_nodes == 1 and len(self.reads) > 1

    @functools.cached_property
    def is_tiny(self) -> bool:
        """Whether the group is worth a kernel and moves so few bytes that the launch is most of the kernel's time."""
        shapes = self.context.shapes
        if self.moving_nodes < 2 or not all(shapes.same(v, self.domain) for v in self.writes):
            return False
        sizes = [shapes.bytes(v) for v in (*self.reads, *self.writes)]
        return None not in sizes and sum(s for s in sizes if s is not None) <= cost.TINY_BYTES


def takes_part(group: Group, value: ir.Value) -> bool:
    """Whether the group reads a tensor through Slices alone and has no index operation that reorders elements."""
    readers = [node for node in group.nodes if value in node.inputs]
    moving = [n for n in group.nodes if index_ops.is_index(n) and not index_ops.is_view(n)]
    return all(n.op_type == "Slice" for n in readers) and all(n.op_type in _IN_PLACE for n in moving)


def may_fit(first: Group, second: Group) -> bool:
    """Whether one kernel could run two groups, by their sizes alone."""
    if len(first.nodes) + len(second.nodes) > cost.MAX_NODES:
        return False
    if not set(first.reads).isdisjoint(second.writes) or not set(second.reads).isdisjoint(first.writes):
        return True  # the kernel would keep these values to itself
    operands = len({*first.reads, *second.reads}) + len(first.writes) + len(second.writes)
    return operands <= cost.MAX_OPERANDS


def is_slow_alone(group: Group, shapes: Shapes) -> bool:
    """Whether a kernel of ours for the group's one operator beats the CUDA provider's."""
    moving = [node for node in group.nodes if not index_ops.is_view(node)]
    if len(moving) != 1:
        return False
    if looks_up(moving[0]):
        return _is_slow_gather(moving[0], shapes)
    if moving[0].op_type in _SLOW_IN_CHANNELS_LAST:
        return any(map(layout.is_channels_last, (*moving[0].inputs, *moving[0].outputs)))
    if is_quantize(moving[0]):  # ONNX Runtime's kernel rounds the quotients of 16 bits to 16 bits first
        return shapes.ir_dtype(moving[0].outputs[0]) == ir.DataType.FLOAT8E4M3FN
    dtype = shapes.dtype(group.domain)
    return moving[0].op_type == "Gelu" and dtype is not None and dtype.name in _SIXTEEN_BIT


def _is_slow_gather(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a Gather moves whole vectors of neighbours, and many: ONNX Runtime moves element by element."""
    data, dtype = node.inputs[0], shapes.dtype(node.outputs[0])
    dims = None if data is None else shapes.dims(data)
    if dims is None or dtype is None:
        return False
    inner = dims[node.attributes.get_int("axis", 0) % len(dims) + 1 :]
    vectors = math.prod(d for d in inner if isinstance(d, int)) * dtype.size % ACCESS_BYTES == 0
    elements = shapes.elements(node.outputs[0])
    return bool(inner) and vectors and (elements is None or elements >= fusion_numbers().min_gathered)

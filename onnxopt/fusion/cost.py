"""The cost model: the bytes that fusion saves, and the cost of recomputing a value.

The closed form: a chain of n elementwise operators over B bytes with c side inputs moves 2nB + cB bytes unfused and
(2 + c)B fused. This module counts value by value, so that broadcast operands count with their own size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxopt.costs.fusion import numbers
from onnxopt.fusion import channels_last, index_ops
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.operands import constant, looks_up
from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.extents import Extent, extent, product
from onnxopt.program.pointwise import Program
from onnxopt.program.rowwise import RowProgram

_COSTS = numbers()
MAX_RECOMPUTED_COST, MAX_OPERANDS, MAX_NODES = _COSTS.max_recomputed_cost, _COSTS.max_operands, _COSTS.max_nodes
TINY_BYTES, MAX_COST = _COSTS.tiny_bytes, _COSTS.max_cost
_CONVOLUTIONS = (("", "Conv"), ("", "ConvTranspose"))
_PRODUCTS = (("", "MatMul"), ("", "Gemm"), ("com.microsoft", "MatMulNBits"))


def region_traffic(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], shapes: Shapes
) -> Traffic:
    """Predicted traffic of `nodes` as separate kernels and as one kernel.

    Views move no bytes, nor does what turns a weight once. The Transposes that the layout pass put around a convolution
    or a pool were not in the model. Other index operations read as many bytes as they write.
    """
    before: int | None = 0
    moving = [node for node in nodes if not index_ops.is_view(node) and not is_free(node)]
    for node in moving:
        if index_ops.is_index(node):
            before = _add(before, total((*node.outputs, *node.outputs), shapes))
            continue
        operands = {v for v in node.inputs if v is not None and constant(v) is None}
        before = _add(before, total((*operands, *node.outputs), shapes))
    products: int | None = 0
    for node in moving:
        products = _add(products, flops(node, shapes))
    after = _add(total(outputs, shapes), _read(nodes, inputs, shapes))
    return Traffic(before, after, launches_before=len(moving), flops=products)


def _read(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], shapes: Shapes) -> int | None:
    """Bytes of inputs that a region reads: of what it only looks elements up in, no more than these."""
    read: int | None = 0
    for value in inputs:
        size, gathers = shapes.bytes(value), [n for n in nodes if value in n.inputs]
        if all(looks_up(n) and value is not n.inputs[1] for n in gathers):
            gathered = total([n.outputs[0] for n in gathers], shapes)
            size = None if size is None or gathered is None else min(size, gathered)
        read = _add(read, size)
    return read


def is_free(node: ir.Node) -> bool:
    """Whether a node moves nothing at a run: it turns a constant, or belongs to a convolution's form (layout pass)."""
    constants = all(v is None or is_constant(v) for v in node.inputs)
    return constants or channels_last.around_window(node) is not None


def flops(node: ir.Node, shapes: Shapes) -> int | None:
    """Floating-point operations of a convolution or a product, 0 for other nodes."""
    if (node.domain, node.op_type) not in (*_CONVOLUTIONS, *_PRODUCTS):
        return 0
    a, b = node.inputs[:2]
    # Each element of the result is a sum of `depth` products; a transposed convolution spreads each element of its
    # input to as many.
    written = shapes.elements(a if node.op_type == "ConvTranspose" and a is not None else node.outputs[0])
    deep = a if (node.domain, node.op_type) in _PRODUCTS else b
    dims = None if deep is None else shapes.dims(deep)
    if written is None or not dims:
        return None
    transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transA", 0))
    depth = dims[1:] if "Conv" in node.op_type else dims[-2:-1] if transposed else dims[-1:]
    static = [d for d in depth if isinstance(d, int)]
    return 2 * written * math.prod(static) if len(static) == len(depth) else None


def moved(
    program: Program | RowProgram, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], shapes: Shapes
) -> int | None:
    """Bytes that one kernel moves, or None where dims are symbolic.

    An input that is read in several orders counts once per order, because a large tensor leaves the cache between two
    orders. Reads that differ in their offset alone (the halves of a rotary embedding) share cached data.
    """
    moving = total(outputs, shapes)
    if program.index is None:
        return _add(moving, total(inputs, shapes))
    for k, value in enumerate(inputs):
        orders: dict[object, int] = {}
        for access in (a for a in program.index.accesses if a.input == k):
            terms = access.terms
            if access.lookup is not None and isinstance(program, Program):
                leaves = sorted(program.leaves_of([access.lookup.index]))
                terms += tuple(dict.fromkeys(t for leaf in leaves for t in program.index.forms[leaf]))
            numbers = [t.mod.number for t in terms]
            if None in numbers:
                return None
            read = math.prod(n for n in numbers if n is not None)
            orders[terms] = orders.get(terms, 0) + read
        size, elements = shapes.bytes(value), shapes.elements(value)
        if size is None or elements is None:
            return None
        moving = _add(moving, sum(min(read, elements) for read in orders.values()) * size // max(elements, 1))
    return moving


def grows(producer: ir.Value, consumer: ir.Value, shapes: Shapes) -> bool:
    """Whether the consumer's domain may have more elements than the producer's."""
    elements_read, elements_written = shapes.elements(producer), shapes.elements(consumer)
    if elements_read is not None and elements_written is not None:
        return elements_written > elements_read
    dims = [shapes.dims(v) for v in (producer, consumer)]
    if any(d is None or None in d for d in dims):
        return True
    before_size, after_size = (product(_size(x, shapes) for x in d if x is not None) for d in dims if d is not None)
    return not after_size.at_most(before_size)


def _size(dim: int | str, shapes: Shapes) -> Extent:
    """A dim by the symbols that it is a product of, so that a view has as many elements as what it is of."""
    symbols = shapes.monomial(dim) if isinstance(dim, str) else None
    return symbols or extent(dim)


def total(values: Iterable[ir.Value], shapes: Shapes) -> int | None:
    """The bytes of values together; None where those of one are not known."""
    count: int | None = 0
    for value in values:
        count = _add(count, shapes.bytes(value))
    return count


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b

"""Which nodes a kernel could run, and for the elementwise nodes that it should not, why.

A reason is a sentence a user reads in `onnxopt explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxopt.fusion import index_ops
from onnxopt.fusion.operands import constant
from onnxopt.graph.placement import HOST_INPUTS, place
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program import operators
from onnxopt.program.elementwise import Operator

_HOST_ELEMENTS = 64  # of a shape or an index; larger tensors that something reads on the host are data


def host_values(graphs: Iterable[ir.Graph | ir.Function], shapes: Shapes) -> set[ir.Value]:
    """Values that ONNX Runtime computes on the CPU even on a GPU: shapes, sizes, indices and what is made of them."""
    host: set[ir.Value] = set()
    for graph in graphs:
        placed = place(graph, shapes.ir_dtype, only_shapes=True)
        host |= {v for v in placed.host_values if _is_small(v, shapes)}
        for node in reversed(list(graph)):
            wanted = {node.inputs[i] for i in HOST_INPUTS.get(node.op_type, ()) if i < len(node.inputs)}
            if any(v in host for v in node.outputs):
                wanted.update(node.inputs)
            host.update(v for v in wanted if v is not None and _is_small(v, shapes))
    return host


def _is_small(value: ir.Value, shapes: Shapes) -> bool:
    dims, elements = shapes.dims(value), shapes.elements(value)
    return (dims is None or len(dims) <= 1) and (elements is None or elements <= _HOST_ELEMENTS)


def is_elementwise(node: ir.Node) -> bool:
    """Whether the operator table has a row for this operator, whatever its version and dtypes."""
    return (node.domain, node.op_type) in operators.OPERATORS


def why_not(node: ir.Node, opsets: Mapping[str, int], shapes: Shapes, host: set[ir.Value]) -> str | None:
    """Why no kernel should run this elementwise or index node, or None where one may."""
    if index_ops.is_index(node):
        return _why_not_index(node, opsets, shapes)
    row = operators.find(node.domain, node.op_type, opsets.get(node.domain))
    if row is None:
        since = operators.OPERATORS[node.domain, node.op_type].since
        return f"the operator table covers {node.op_type} from opset {since} on"
    operands = [v for v in node.inputs if v is not None]
    if len(node.outputs) != 1 or not operands or not _arity_fits(row, len(node.inputs)):
        return f"{node.op_type} with {len(node.inputs)} inputs and {len(node.outputs)} outputs is not in the table"
    if any(v is None and not row.operand(k).optional for k, v in enumerate(node.inputs)):
        return "an operand is left out"
    if any(v in host for v in (*operands, *node.outputs)):
        return "shape arithmetic: it belongs on the CPU, and moving it to a kernel would copy it back and forth"
    for value in (*operands, *node.outputs):
        if shapes.dtype(value) is None:
            return f"the dtype of {value.name} is unknown or cannot be stored by a kernel"
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    for k, operand in enumerate(node.inputs):
        dtype = None if operand is None or constant(operand) is not None else shapes.dtype(operand)
        if dtype is not None and not row.takes(k, dtype.name, attributes):
            barred = dtype.name in row.dtypes - row.allowed(attributes)
            return f"{node.op_type} of {dtype.name}{' with these attributes' * barred} is not in the operator table"
    if all(constant(v) is not None or v.const_value is not None for v in operands):
        return "all operands are constants"
    return _left_to_provider(node)


def _why_not_index(node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> str | None:
    if opsets.get("", 0) < index_ops.SINCE:
        return f"{node.op_type} is taken into kernels from opset {index_ops.SINCE} on"
    for value in (*index_ops.data_inputs(node), *node.outputs):
        if value is not None and shapes.dtype(value) is None:
            return f"the dtype of {value.name} is unknown or cannot be stored by a kernel"
    if all(v is None or v.const_value is not None for v in node.inputs):
        return "all operands are constants"
    if _is_part_of_products(node, shapes):
        return "the product that reads it transposes by itself"
    return _left_to_provider(node)


def _is_part_of_products(node: ir.Node, shapes: Shapes) -> bool:
    """Whether ORT makes this Transpose a flag of the MatMuls that read it (MatmulTransposeFusion)."""
    dims = shapes.dims(node.outputs[0])
    if node.op_type != "Transpose" or dims is None:
        return False
    order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(dims)))[::-1]
    last = len(order) - 1
    readers = list(node.outputs[0].consumers())
    swaps = order[:-2] == list(range(last - 1)) and order[-2:] == [last, last - 1]
    return swaps and bool(readers) and all(r.op_type in ("MatMul", "Gemm", "FusedMatMul") for r in readers)


def _arity_fits(row: Operator, count: int) -> bool:
    least, most = row.arity
    return least <= count and (most is None or count <= most)


def _left_to_provider(node: ir.Node) -> str | None:
    producers = [v.producer() for v in node.inputs if v is not None]
    if any(p is not None and p.op_type == "DequantizeLinear" for p in producers):
        return "it follows DequantizeLinear: the provider's integer kernels take both"
    if any(u.op_type == "QuantizeLinear" for v in node.outputs for u in v.consumers()):
        return "QuantizeLinear follows it: the provider's integer kernels take both"
    if _dequantizes(node):
        return "it scales the result of an integer product: the provider takes both into one kernel"
    return None


def _dequantizes(node: ir.Node) -> bool:
    """Whether this is the Cast behind MatMulInteger or ConvInteger, or the Mul behind such a Cast."""
    producers = [v.producer() for v in node.inputs if v is not None]
    if node.op_type == "Cast":
        return any(p is not None and p.op_type in ("MatMulInteger", "ConvInteger") for p in producers)
    return node.op_type == "Mul" and any(p is not None and p.op_type == "Cast" and _dequantizes(p) for p in producers)

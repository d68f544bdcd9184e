"""Which elementwise and index nodes can become part of a kernel, and the reason where a node cannot.

A reason is a sentence that users read in `onnxopt explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxopt.fusion import channels_last, index_ops, integer_kernels
from onnxopt.fusion.operands import constant, looks_up
from onnxopt.graph.placement.place import HOST_INPUTS, place
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.operators import table as operators
from onnxopt.program.operators.elementwise import Operator

_HOST_ELEMENTS = 64  # the most elements of a shape or an index; a larger tensor read on the host is data


def host_values(graphs: Iterable[ir.Graph | ir.Function], shapes: Shapes) -> set[ir.Value]:
    """Values that ONNX Runtime computes on the CPU even on a GPU: shapes, sizes, indices, and values made of these."""
    host: set[ir.Value] = set()
    for graph in graphs:
        placed = place(graph, shapes.ir_dtype, only_shapes=True)
        host |= {v for v in placed.host_values if _is_small(v, shapes)}
        for node in reversed(list(graph)):
            read_on_host = {node.inputs[i] for i in HOST_INPUTS.get(node.op_type, ()) if i < len(node.inputs)}
            if any(v in host for v in node.outputs):
                read_on_host.update(node.inputs)
            host.update(v for v in read_on_host if v is not None and _is_small(v, shapes))
    return host


def _is_small(value: ir.Value, shapes: Shapes) -> bool:
    dims, elements = shapes.dims(value), shapes.elements(value)
    return (dims is None or len(dims) <= 1) and (elements is None or elements <= _HOST_ELEMENTS)


def is_elementwise(node: ir.Node) -> bool:
    """Whether the operator table has a row for this operator, whatever its version and dtypes."""
    return (node.domain, node.op_type) in operators.OPERATORS


def why_not(
    node: ir.Node, opsets: Mapping[str, int], shapes: Shapes, host: set[ir.Value], *, cuda: bool = True
) -> str | None:
    """The reason why no kernel should run this elementwise or index node, None where a kernel can.

    cuda: whether kernels run on GPUs too. Without them the CPU provider's integer kernels keep their nodes.
    """
    if index_ops.is_index(node):
        reason = _why_not_index(node, opsets, shapes)
    else:
        reason = _why_not_elementwise(node, opsets, shapes, host)
    return reason if cuda or reason is not None else reason_for_provider(node)


def _why_not_elementwise(node: ir.Node, opsets: Mapping[str, int], shapes: Shapes, host: set[ir.Value]) -> str | None:
    row = operators.find(node.domain, node.op_type, opsets.get(node.domain))
    if row is None:
        return _needs_opset(node, operators.OPERATORS[node.domain, node.op_type].since, opsets)
    operands = [v for v in node.inputs if v is not None]
    if len(node.outputs) != 1 or not operands or not _arity_fits(row, len(node.inputs)):
        counts = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
        return f"The operator table has no {node.op_type} with {counts}"
    if any(v is None and not row.operand(k).optional for k, v in enumerate(node.inputs)):
        return f"{node.op_type} leaves out an input that the operator table requires"
    if any(v in host and constant(v) is None for v in (*operands, *node.outputs)):
        return runs_on_host(node)
    for value in (*operands, *node.outputs):
        if shapes.dtype(value) is None:
            return _is_not_stored(value, shapes)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    for k, operand in enumerate(node.inputs):
        dtype = None if operand is None or constant(operand) is not None else shapes.dtype(operand)
        if operand is not None and dtype is not None and not row.takes(k, dtype.name, attributes):
            barred = dtype.name in row.dtypes - row.allowed(attributes)
            of = f"{dtype.name}{' with these attributes' * barred}"
            return f"The operator table has no {node.op_type} of {of} (`{operand.name}`)"
    if all(constant(v) is not None or v.const_value is not None for v in operands):
        return f"All inputs of {node.op_type} are constants"
    return _why_not_along_axis(node, row, shapes)


def _why_not_index(node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> str | None:
    if opsets.get("", 0) < index_ops.SINCE:
        return _needs_opset(node, index_ops.SINCE, opsets)
    for value in (*index_ops.data_inputs(node), *node.outputs):
        if value is not None and shapes.dtype(value) is None:
            return _is_not_stored(value, shapes)
    if all(v is None or v.const_value is not None for v in node.inputs):
        return f"All inputs of {node.op_type} are constants"
    if (window := channels_last.around_window(node)) is not None:
        return f"The {window.op_type} runs in channels last, and this Transpose belongs to it"
    if _is_part_of_matmuls(node, shapes):
        reader = next(iter(node.outputs[0].consumers()))
        return f"ONNX Runtime folds this Transpose into the {reader.op_type} that reads `{node.outputs[0].name}`"
    return None


def runs_on_host(node: ir.Node) -> str:
    """The reason to refuse a node that computes a shape or an index."""
    return (
        f"{node.op_type} computes a shape or an index; ONNX Runtime runs such nodes on the CPU, and a GPU kernel would"
        " add copies"
    )


def _needs_opset(node: ir.Node, since: int, opsets: Mapping[str, int]) -> str:
    opset = opsets.get(node.domain)
    imported = "imports none of its domain" if opset is None else f"uses opset {opset}"
    return f"{node.op_type} can be fused from opset {since} on; the model {imported}"


def _is_not_stored(value: ir.Value, shapes: Shapes) -> str:
    dtype = shapes.ir_dtype(value)
    if dtype is None:
        return f"The dtype of `{value.name}` is unknown"
    return f"`{value.name}` has dtype {dtype.name.lower()}, which kernels cannot store"


def _is_part_of_matmuls(node: ir.Node, shapes: Shapes) -> bool:
    """Whether ORT folds this Transpose into the MatMuls that read its result (MatmulTransposeFusion)."""
    dims = shapes.dims(node.outputs[0])
    if node.op_type != "Transpose" or dims is None:
        return False
    order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(dims)))[::-1]
    last = len(order) - 1
    readers = list(node.outputs[0].consumers())
    swaps = order[:-2] == list(range(last - 1)) and order[-2:] == [last, last - 1]
    return swaps and bool(readers) and all(r.op_type in ("MatMul", "Gemm", "FusedMatMul") for r in readers)


def _arity_fits(row: Operator, count: int) -> bool:
    low, high = row.arity
    return low <= count and (high is None or count <= high)


def reason_for_provider(node: ir.Node) -> str | None:
    """The reason to leave a node to the CPU provider's own kernels, None where it should not keep the node.

    Between codes, fused kernels of the library take longer than ONNX Runtime's kernels one by one: figures are with
    costs/data/cpu.json's min_operators.
    """
    if node.op_type == "MatMulNBits":
        return "ONNX Runtime's CPU provider multiplies by the codes of MatMulNBits itself"
    if looks_up(node):
        return "No CPU kernel looks elements up at indices that it reads; ONNX Runtime's CPU provider runs this Gather"
    if integer_kernels.is_coding(node):
        return f"ONNX Runtime's CPU provider runs {node.op_type} faster by itself than a fused kernel of the CPU does"
    operator = integer_kernels.replaced_with(node)
    if operator is None:
        return None
    with_it = "" if operator is node else f" together with the {operator.op_type} `{operator.name}`"
    return f"ONNX Runtime's CPU provider replaces this {node.op_type}{with_it} by a kernel of integers"


def _why_not_along_axis(node: ir.Node, row: Operator, shapes: Shapes) -> str | None:
    """The reason against scales and zero points that numpy's rules do not broadcast to the first operand."""
    x = node.inputs[0]
    dims = None if x is None else shapes.dims(x)
    for k, operand in enumerate(node.inputs):
        if operand is None or not row.operand(k).along_axis or shapes.elements(operand) == 1:
            continue
        operand_dtype = shapes.dims(operand)
        if dims is None or operand_dtype is None:
            return f"The rank of `{operand.name if dims is not None or x is None else x.name}` is unknown"
        axis = node.attributes.get_int("axis", 1)
        if operand_dtype and (len(operand_dtype) > 1 or axis not in (-1, len(dims) - 1)):
            return (
                f"`{operand.name}` has a value for each position of axis {axis}; a kernel takes one value, or one for "
                "each position of the last axis"
            )
    return None

"""int8 codes that a QuantizeLinear writes and only DequantizeLinear reads become uint8 codes, 128 above them.

    DequantizeLinear(QuantizeLinear(x, s, z), s, z) -> the same with the zero point z + 128 in uint8

Exact. ONNX Runtime's CPU provider does it too while it loads a model, as its integer kernels on x86-64 take uint8; but
only where a DequantizeLinear is the only reader. Codes that a convolution reads or writes stay int8, which is what its
kernel multiplies.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import dtype_of, is_dequantize, is_plain, is_quantize, scalar
from onnxopt.graph.passes.new_nodes import initializer

_SHIFT = 128


class UnsignedCodesPass(ir.passes.InPlacePass):
    """The pass. New values need names."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        changed = False
        for graph in model.graphs():
            for node in graph:
                changed |= _shift(node, graph)
        return ir.passes.PassResult(model, changed)


def _shift(node: ir.Node, graph: ir.Graph | ir.Function) -> bool:
    """Let a Q and its DQs use uint8, where nothing else reads the codes."""
    if not is_quantize(node) or not isinstance(graph, ir.Graph) or not _is_signed(node):
        return False
    codes, zero = node.outputs[0], scalar(node.inputs[2])
    readers = [use.node for use in codes.uses()]
    if zero is None or codes.is_graph_output() or any(use.idx != 0 for use in codes.uses()):
        return False
    if not all(is_dequantize(r) and _is_signed(r) and scalar(r.inputs[2]) == zero for r in readers):
        return False
    if _is_convolved(node.inputs[0]) or any(_convolves(r.outputs[0]) for r in readers):
        return False
    tensor = ir.Tensor((zero.astype(np.int16) + _SHIFT).astype(np.uint8))
    shifted = initializer(graph, tensor, f"{codes.name}_zero_point")
    for each in (node, *readers):
        each.replace_input_with(2, shifted)
    codes.dtype = ir.DataType.UINT8
    return True


def _is_convolved(value: ir.Value | None) -> bool:
    """Whether a Conv computes a value, also with a Transpose after it."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Transpose" and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    return producer is not None and producer.op_type == "Conv"


def _convolves(value: ir.Value) -> bool:
    """Whether a Conv reads a value, also through a Transpose."""
    transposed = [v for reader in value.consumers() if reader.op_type == "Transpose" for v in reader.outputs]
    return any(reader.op_type == "Conv" for v in (value, *transposed) for reader in v.consumers())


def _is_signed(node: ir.Node) -> bool:
    """Whether a Q or DQ has a zero point of int8, and one scale for the whole tensor."""
    return len(node.inputs) > 2 and is_plain(node) and dtype_of(node.inputs[2]) == ir.DataType.INT8

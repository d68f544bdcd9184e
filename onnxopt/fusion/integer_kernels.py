"""Nodes that ONNX Runtime's CPU provider replaces by integer kernels: `DequantizeLinear -> operator -> QuantizeLinear`.

The provider's selectors (qdq_transformer/selectors_actions) find an operator whose data operands all come from
DequantizeLinear and whose results all go to QuantizeLinear, and put QLinearMatMul, QLinearConv, QLinearAdd and the like
in the place of all of them. A kernel of ours for one of these nodes would leave the others as floats. The CUDA provider
has no such kernels: it runs every node by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_DOMAINS = ("", "com.microsoft")
_EIGHT_BITS = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
# Operator -> how many of its operands are data; the others state shapes, axes or a bias.
_REPLACED = {
    "Conv": 2, "Add": 2, "Mul": 2, "Where": 3, "AveragePool": 1, "GlobalAveragePool": 1, "LeakyRelu": 1, "Sigmoid": 1,
    "Softmax": 1, "Split": 1,
}  # fmt: skip
_PRODUCTS = frozenset({"MatMul", "Gemm"})  # replaced also where the result stays float
_MOVES = frozenset(
    {"Expand", "Flatten", "Gather", "MaxPool", "Reshape", "Resize", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)  # they run on codes
_INTEGER_PRODUCTS = frozenset({"MatMulInteger", "ConvInteger"})


def replaced_with(node: ir.Node) -> ir.Node | None:
    """The operator that the CPU provider replaces together with this node, which may be the node itself."""
    if node.domain not in _DOMAINS:
        return None
    return node if _is_replaced(node) else _scaled_product(node)


def is_coding(node: ir.Node) -> bool:
    """Whether the node is a QuantizeLinear or DequantizeLinear."""
    return node.op_type in (QUANTIZE, DEQUANTIZE) and node.domain in _DOMAINS


def is_left_out(node: ir.Node, cuda: bool) -> bool:
    """Whether the node is a Q or DQ that no kernel should run: a constant's, or any where nothing runs on a GPU."""
    return is_coding(node) and (not cuda or all(v is None or v.const_value is not None for v in node.inputs))


def _is_replaced(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type in _PRODUCTS:
        return _are_dequantized(node.inputs[:2]) or _has_packed_weight(node)
    if node.op_type == "Concat":
        return _are_dequantized(node.inputs) and _are_quantized(node)
    if node.op_type == "Where":  # a branch that is a constant gets a DQ of its own
        branches = [v for v in node.inputs[1:] if v is None or v.const_value is None]
        return _are_dequantized(branches) and _are_quantized(node)
    if node.op_type in _REPLACED or node.op_type in _MOVES:
        return _are_dequantized(node.inputs[: _REPLACED.get(node.op_type, 1)]) and _are_quantized(node)
    return False


def _are_dequantized(values: Sequence[ir.Value | None]) -> bool:
    """Whether 8-bit codes are behind all of these values. Codes of unknown dtype count as 8 bits."""
    producers = [_producer(value) for value in values]
    return bool(producers) and all(p is not None and p.op_type == DEQUANTIZE and _is_short(p) for p in producers)


def _is_short(dequantize: ir.Node) -> bool:
    codes = dequantize.inputs[0]
    dtype = None if codes is None else codes.dtype
    return dtype is None or dtype in _EIGHT_BITS


def _are_quantized(node: ir.Node) -> bool:
    """Whether nothing but QuantizeLinear reads the results of a node."""
    if any(v.is_graph_output() for v in node.outputs):
        return False
    readers = [reader for v in node.outputs for reader in v.consumers()]
    return bool(readers) and all(reader.op_type == QUANTIZE for reader in readers)


def _has_packed_weight(node: ir.Node) -> bool:
    """Whether a weight in blocks becomes the one of MatMulNBits."""
    weight = _producer(node.inputs[1])
    return weight is not None and weight.op_type == DEQUANTIZE and bool(weight.attributes.get_int("block_size", 0))


def _scaled_product(node: ir.Node) -> ir.Node | None:
    """The integer product whose result the node casts or scales; of a MatMul also what it adds a bias to."""
    if node.op_type == "Cast":
        producer = _producer(node.inputs[0])
        return producer if producer is not None and producer.op_type in _INTEGER_PRODUCTS else None
    if node.op_type == "Mul" and (product := _scaled(node)) is not None:
        return product
    around: list[ir.Node] = []
    if node.op_type == "Mul":
        around = list(node.outputs[0].consumers())
    elif node.op_type == "Add" and any(v is not None and v.const_value is not None for v in node.inputs):
        around = [p for value in node.inputs if (p := _producer(value)) is not None]
    products = (product for one in around if (product := _scaled(one)) is not None)
    return next((product for product in products if product.op_type == "MatMulInteger"), None)


def _scaled(node: ir.Node) -> ir.Node | None:
    """The integer product whose result a Mul scales, behind a Cast."""
    if node.op_type != "Mul":
        return None
    casts = [p for value in node.inputs if (p := _producer(value)) is not None and p.op_type == "Cast"]
    return next((p for cast in casts if (p := _scaled_product(cast))), None)


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()

"""Products with weights of 2, 4 or 8 bits: MatMulNBits, whose weight the library reads as it is stored."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm.growing import GrowingGemm, Packed
from onnxopt.kinds.gemm.steps import add
from onnxopt.program.gemm import GROUPS, MIN_GROUP, PACKED_BITS, SIXTEEN_BIT
from onnxopt.program.hardware import ACCESS_BYTES

OPERATOR = "MatMulNBits"
_INPUTS = 6  # with those that are optional


def is_packed(node: ir.Node) -> bool:
    """Whether a node is a product with packed codes."""
    return node.op_type == OPERATOR and node.domain == CONTRIB


def start(node: ir.Node, shapes: Shapes) -> GrowingGemm | str:
    """The GEMM of a MatMulNBits, or the reason why the library cannot run the node."""
    inputs: list[ir.Value | None] = [*node.inputs, *[None] * (_INPUTS - len(node.inputs))]
    a, b, scales, zeros, order, bias = inputs
    if a is None or b is None or scales is None:
        return f"{OPERATOR} leaves out an input"
    if order is not None or _attribute(node, "weight_prepacked"):
        return f"The weight of {OPERATOR} is in an order of its own (g_idx or weight_prepacked)"
    columns = _attribute(node, "N")
    if list(shapes.dims(b) or ())[:1] != [columns]:
        return f"The first dim of `{b.name}` is not N, which is {columns}"
    if reason := _why_not_sizes(node) or _why_not_values(a, [b, scales, *([] if zeros is None else [zeros])], shapes):
        return reason
    gemm = GrowingGemm([node], a, b, node.outputs[0], transpose_b=True)
    gemm.packed = Packed(_attribute(node, "bits", 4), _attribute(node, "block_size"), scales, zeros)
    return gemm if bias is None else add(gemm, bias, 1.0, shapes) or gemm


def _why_not_sizes(node: ir.Node) -> str:
    depth, bits, group = _attribute(node, "K"), _attribute(node, "bits", 4), _attribute(node, "block_size")
    if bits not in PACKED_BITS or group not in GROUPS or group < MIN_GROUP[bits]:
        minimum = MIN_GROUP.get(bits, GROUPS[0])
        return (
            f"{OPERATOR} of {bits} bits in blocks of {group} runs as ONNX Runtime's own kernel; the library has kernels"
            f" for {', '.join(map(str, PACKED_BITS))} bits in blocks of {minimum} to {GROUPS[-1]}"
        )
    row, codes_of_word = -(-depth // group) * group * bits // 8, 32 // bits
    if depth % max(ACCESS_BYTES // 2, codes_of_word) or row % ACCESS_BYTES:
        return f"Rows of {depth} elements, or of {row} bytes of codes, are no multiple of {ACCESS_BYTES} bytes"
    return ""


def _why_not_values(a: ir.Value, weights: list[ir.Value], shapes: Shapes) -> str:
    dtype = shapes.dtype(a)
    if dtype is None or dtype.name not in SIXTEEN_BIT:
        name = "an unknown dtype" if dtype is None else dtype.name
        return (
            f"A {OPERATOR} of {name} runs as ONNX Runtime's own kernel; the library's is of {' and '.join(SIXTEEN_BIT)}"
        )
    if len(shapes.dims(a) or ()) < 2:
        return f"`{a.name}` has fewer than two dims or an unknown rank"
    for value in weights:
        if value.const_value is None or value.is_graph_input():
            return f"`{value.name}` of {OPERATOR} is no constant"
    b, scales, *zeros = (shapes.dtype(v) for v in weights)
    fits = b is not None and b.name == "uint8" and scales == dtype
    if not fits or any(z is None or z.name not in ("uint8", dtype.name) for z in zeros):
        return f"The weight, the scales or the zero points of {OPERATOR} have other dtypes than uint8 and {dtype.name}"
    return ""


def _attribute(node: ir.Node, name: str, default: int = 0) -> int:
    return node.attributes.get_int(name, default) or 0

"""Shapes and dtypes of ONNX Runtime's own operators that only a runtime's optimizer, a quantizer or genai writes.

One row an operator: the dims of its first output, and how its dtype follows from the operands. The definitions are
those of ONNX Runtime's ContribOperators.md. Domain com.microsoft.nchwc: tensors in blocks of channels, whose channels
are padded to whole blocks of a size that differs from CPU to CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.dims import Dim, Dims, Unknowns, broadcast, floor, product, simplest
from onnxopt.program.dtypes import to_ir
from onnxopt.program.operators.result_dtypes import Attributes, ResultDtype, operand_dtype, same

CONTRIB, BLOCKED = "com.microsoft", "com.microsoft.nchwc"


class InferredShapes(Protocol):
    """What a rule may ask about the values inferred so far."""

    unknowns: Unknowns

    def dims(self, value: ir.Value | None) -> Dims | None: ...

    def dtype(self, value: ir.Value) -> ir.DataType | None: ...


Rule = Callable[[ir.Node, InferredShapes], Dims | None]


def operand_dtype_or(position: int, default: str) -> ResultDtype:
    """The result has the dtype of one operand, or the default where the operand is left out."""

    def rule(operands: list[ir.DataType | None], attributes: Attributes) -> ir.DataType | None:
        return operands[position] if position < len(operands) else to_ir(default)

    return rule  # type: ignore[return-value]


def _same(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    return inferred.dims(node.inputs[0])


def _broadcast_of(*positions: int) -> Rule:
    def rule(node: ir.Node, inferred: InferredShapes) -> Dims | None:
        shapes = [inferred.dims(node.inputs[k]) for k in positions]
        return None if any(s is None for s in shapes) else broadcast([s for s in shapes if s is not None])

    return rule


def _times_columns(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """(..., K) times a packed weight of N columns."""
    rows, columns = inferred.dims(node.inputs[0]), node.attributes.get_int("N")
    return None if not rows or columns is None else (*rows[:-1], columns)


def _matmul(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    return _product(inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1]))


def _product(a: Dims | None, b: Dims | None) -> Dims | None:
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _gemm(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    a, b = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[3 if node.op_type == "QGemm" else 1])
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return (a[1 if node.attributes.get_int("transA", 0) else 0], b[0 if node.attributes.get_int("transB", 0) else 1])


def _fused_matmul(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """FusedMatMul, whose operands may have their last two dims swapped. transBatch moves the batch: not known here."""
    if any(node.attributes.get_int(f"transBatch{name}", 0) for name in "AB"):
        return None
    shapes = []
    for k, name in enumerate("AB"):
        dims = inferred.dims(node.inputs[k])
        if dims is None or len(dims) < 2:
            return None
        shapes.append((*dims[:-2], dims[-1], dims[-2]) if node.attributes.get_int(f"trans{name}", 0) else dims)
    return _product(*shapes)


def _gathered_blocks(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """Rows of a table in blocks; uint8 holds 8 / bits elements along the last axis."""
    data, indices = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    if not data or indices is None or node.inputs[0] is None:
        return None
    axis = node.attributes.get_int("gather_axis", 0) % len(data)
    packed = 8 // node.attributes.get_int("bits", 4) if inferred.dtype(node.inputs[0]) == ir.DataType.UINT8 else 1
    data = (*data[:-1], product((data[-1], packed)))
    return (*data[:axis], *indices, *data[axis + 1 :])


def _attention(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """QAttention: (B, S, K) times packed weights of three equal parts."""
    x, weight = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    if x is None or len(x) != 3 or weight is None or not isinstance(weight[-1], int):
        return None
    return (*x[:2], weight[-1] // 3)


def _embedded(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    ids, table = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[2])
    return None if ids is None or not table else (*ids, table[-1])


def _concat(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """QLinearConcat: scale and zero point of the result, then (x, scale, zero point) of every part."""
    shapes = [inferred.dims(value) for value in node.inputs[2::3]]
    present = [s for s in shapes if s is not None]
    if len(present) != len(shapes) or not present:
        return None
    axis = node.attributes["axis"].as_int() % len(present[0])
    dims: list[Dim] = [
        min((s[k] for s in present), key=lambda dim: not isinstance(dim, int)) for k in range(len(present[0]))
    ]
    dims[axis] = simplest(sum((s[axis] for s in present), start=sympy.Integer(0)))
    return tuple(dims)


def _windows(x: int, weight: int, *, last: bool | None = None, weight_last: bool = False) -> Rule:
    """A convolution with explicit padding. last: whether channels are the last dim, None: as the attribute says.

    weight_last: whether those of the weight are.
    """

    def rule(node: ir.Node, inferred: InferredShapes) -> Dims | None:
        dims_of_x, kernel = inferred.dims(node.inputs[x]), inferred.dims(node.inputs[weight])
        if dims_of_x is None or kernel is None or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            return None
        is_last = bool(node.attributes.get_int("channels_last", 0)) if last is None else last
        if weight_last:
            kernel = (kernel[0], kernel[-1], *kernel[1:-1])
        count = len(dims_of_x) - 2
        pads = node.attributes.get_ints("pads", (0,) * 2 * count)
        strides, dilations = (node.attributes.get_ints(name, (1,) * count) for name in ("strides", "dilations"))
        spatial: list[Dim] = []
        for k in range(count):
            size = dims_of_x[k + 1 if is_last else k + 2]
            room = simplest(size + pads[k] + pads[count + k] - dilations[k] * (kernel[2 + k] - 1) - 1)
            spatial.append(simplest(floor(sympy.sympify(room) / strides[k]) + 1))
        return (dims_of_x[0], *spatial, kernel[0]) if is_last else (dims_of_x[0], kernel[0], *spatial)

    return rule


def _global_pool(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    dims = inferred.dims(node.inputs[0])
    if dims is None:
        return None
    ones = (1,) * (len(dims) - 2)
    return (dims[0], *ones, dims[-1]) if node.attributes.get_int("channels_last", 0) else (*dims[:2], *ones)


def _to_blocks(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    dims = inferred.dims(node.inputs[0])
    if dims is None or len(dims) != 4:
        return None
    height, width = dims[1:3] if node.attributes.get_int("channels_last", 0) else dims[2:]
    return (dims[0], inferred.unknowns.dim(), height, width)


def _from_blocks(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    dims, channels = inferred.dims(node.inputs[0]), node.attributes.get_int("channels")
    if dims is None or channels is None:
        return None
    last = node.attributes.get_int("channels_last", 0)
    return (dims[0], *dims[2:], channels) if last else (dims[0], channels, *dims[2:])


def _unknown(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    return None


RULES: dict[tuple[str, str], tuple[Rule, ResultDtype]] = {
    # products of quantized weights
    (CONTRIB, "MatMulNBits"): (_times_columns, same),
    (CONTRIB, "MatMulBnb4"): (_times_columns, same),
    (CONTRIB, "GatherBlockQuantized"): (_gathered_blocks, operand_dtype(2)),
    (CONTRIB, "QMoE"): (_same, same),
    (CONTRIB, "MoE"): (_same, same),
    # what ONNX Runtime's optimizer makes of Q and DQ
    (CONTRIB, "QLinearAdd"): (_broadcast_of(0, 3), same),
    (CONTRIB, "QLinearMul"): (_broadcast_of(0, 3), same),
    (CONTRIB, "QLinearWhere"): (_broadcast_of(0, 1, 4), operand_dtype(1)),
    (CONTRIB, "QLinearSigmoid"): (_same, same),
    (CONTRIB, "QLinearLeakyRelu"): (_same, same),
    (CONTRIB, "QLinearSoftmax"): (_same, same),
    (CONTRIB, "QLinearConcat"): (_concat, operand_dtype(2)),
    (CONTRIB, "QLinearGlobalAveragePool"): (_global_pool, same),
    (CONTRIB, "QLinearAveragePool"): (_unknown, same),
    (CONTRIB, "QLinearReduceMean"): (_unknown, same),
    (CONTRIB, "QLinearConv"): (_windows(0, 3), operand_dtype(7)),
    (CONTRIB, "QGemm"): (_gemm, operand_dtype_or(8, "float32")),
    (CONTRIB, "QAttention"): (_attention, operand_dtype(3)),
    (CONTRIB, "QEmbedLayerNormalization"): (_embedded, operand_dtype(8)),
    (CONTRIB, "MatMulIntegerToFloat"): (_matmul, operand_dtype(2)),
    (CONTRIB, "DynamicQuantizeMatMul"): (_matmul, same),
    # what it makes of floats
    (CONTRIB, "EmbedLayerNormalization"): (_embedded, operand_dtype(2)),
    (CONTRIB, "FusedMatMul"): (_fused_matmul, same),
    (CONTRIB, "FusedGemm"): (_gemm, same),
    (CONTRIB, "FusedConv"): (_windows(0, 1, last=False), same),
    (CONTRIB, "NhwcConv"): (_windows(0, 1, last=True, weight_last=True), same),
    (CONTRIB, "NhwcFusedConv"): (_windows(0, 1, last=True), same),
    (BLOCKED, "ReorderInput"): (_to_blocks, same),
    (BLOCKED, "ReorderOutput"): (_from_blocks, same),
    (BLOCKED, "Conv"): (_windows(0, 1, last=False), same),
    (BLOCKED, "GlobalAveragePool"): (_global_pool, same),
    (BLOCKED, "GlobalMaxPool"): (_global_pool, same),
    (BLOCKED, "AveragePool"): (_unknown, same),
    (BLOCKED, "MaxPool"): (_unknown, same),
}

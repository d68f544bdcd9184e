"""Which products and convolutions of a model are quantized, and why the others are not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxopt.costs.convolution import numbers
from onnxopt.graph.coded_convolutions import MULTIPLE as CHANNELS
from onnxopt.graph.refusal import Refusal
from onnxopt.tools.quantization.asked import Asked

_FLOAT_EDGES = frozenset({"Add", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast", "Transpose", "Flatten"})
_VIEWS = frozenset({"Reshape", "Transpose", "Cast", "Identity", "Squeeze", "Unsqueeze"})
_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention"})
_CODES = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits", "MatMulInteger",
                    "QLinearMatMul", "QLinearConv", "ConvInteger", "MatMulBnb4"})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Product:
    """A product or convolution that is quantized. rows, columns: of its weight as a matrix, so K and N.

    noise: of the weight, to its signal, that rounding each group with one scale makes on average: (scale / sqrt(12) /
    root mean square)^2.
    """

    node: str
    op_type: str
    rows: int
    columns: int
    noise: float


def codes_in(model: ir.Model) -> str | None:
    """The operator type of a node that works on codes; None in a float model."""
    return next((n.op_type for n in model.graph.all_nodes() if n.op_type in _CODES), None)


def place(model: ir.Model, asked: Asked) -> tuple[list[Product], list[Refusal]]:
    """The nodes of the main graph to quantize, and those with a weight that stay float32.

    model: normalized; all nodes have names.
    """
    last = _last_layers(model) if asked.format.activations else set()
    chosen: list[Product] = []
    refusals: list[Refusal] = []
    for node in model.graph:
        if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        name = node.name or ""
        weight = _weight(node)
        if weight is None:
            continue  # a product of two activations
        rows, columns = _as_matrix(node, weight.shape)
        if reason := _refusal(node, weight, rows, columns, asked, node in last):
            refusals.append(Refusal(name, node.op_type, "", reason))
        else:
            chosen.append(Product(name, node.op_type, rows, columns, _noise(node, weight.numpy(), asked)))
    return chosen, refusals


def _refusal(node: ir.Node, weight: ir.TensorProtocol, rows: int, columns: int, asked: Asked, last: bool) -> str:
    """Why a node stays float32; "" where it does not."""
    form = asked.format
    if asked.keep_float is not None and asked.keep_float.search(node.name or ""):
        return "its name matches --keep-float"
    if node.op_type not in form.operators:
        return f"{asked.name} is for {' and '.join(form.operators)}"
    if weight.dtype not in ((ir.DataType.FLOAT, ir.DataType.FLOAT16) if asked.name == "fp8" else (ir.DataType.FLOAT,)):
        return f"its weight is {weight.dtype.name.lower()}, not float32{' or float16' * (asked.name == 'fp8')}"
    if last:
        return "its result is an output of the model, which rounding of activations would coarsen"
    if min(rows, columns) < form.min_side:
        return f"its weight of {rows} x {columns} is too small to pay: {form.min_side} rows and columns"
    if min(rows, columns) < form.min_after_attention and _reads_attention(node):
        return f"storing codes of attention's result takes longer than a product of {rows} x {columns} saves"
    if node.op_type == "Conv" and (reason := _convolution_refusal(node, weight)):
        return reason
    if rows % form.multiple or columns % form.multiple:
        return f"its weight of {rows} x {columns} is not a multiple of {form.multiple}"
    if not form.activations and node.op_type == "Gemm" and not is_plain(node):
        return "its alpha, beta or transA is not that of a product with a bias"
    return ""


def _convolution_refusal(node: ir.Node, weight: ir.TensorProtocol) -> str:
    """Why no kernel of a GPU would multiply the codes of a convolution; "" where some does."""
    filters, channels, *_ = weight.shape.numpy()
    if node.attributes.get_int("group", 1) != 1 or len(weight.shape) != 4:
        return "it has groups, or is not one of images: GPUs run it on floats"
    if filters % CHANNELS or channels % CHANNELS:
        return f"its channels, {channels} to {filters}, are no multiples of {CHANNELS}: GPUs run it on floats"
    if min(filters, channels) < (fewest := numbers().coded_channels):
        return f"its channels, {channels} to {filters}, are fewer than {fewest}: GPUs take longer for its codes"
    return ""


def _reads_attention(node: ir.Node) -> bool:
    """Whether a product reads the result of a product of two activations, or of an operator for attention."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    while maker is not None and maker.op_type in _VIEWS and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    if maker is None:
        return False
    return maker.op_type in _ATTENTION or (maker.op_type == "MatMul" and _weight(maker) is None)


def is_plain(node: ir.Node) -> bool:
    """Whether a Gemm is a product with a bias, and nothing else."""
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    return values.get("alpha", 1.0) == 1.0 and values.get("beta", 1.0) == 1.0 and not values.get("transA", 0)


def _weight(node: ir.Node) -> ir.TensorProtocol | None:
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    tensor = value.const_value
    return tensor if len(tensor.shape) == 2 or node.op_type == "Conv" else None


def _is_stored_by_column(node: ir.Node) -> bool:
    """Whether a weight's first dim is that of the columns of its matrix, as filters are."""
    return node.op_type == "Conv" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0)


def _as_matrix(node: ir.Node, shape: ir.Shape | ir.ShapeProtocol) -> tuple[int, int]:
    """Rows and columns of a weight as a matrix."""
    dims = [d for d in shape if isinstance(d, int)]  # a constant has no other ones
    return (math.prod(dims[1:]), dims[0]) if _is_stored_by_column(node) else (dims[0], dims[1])


def _noise(node: ir.Node, weight: np.ndarray, asked: Asked) -> float:
    """As Product.noise. A group is a column, or a block of one."""
    rows, columns = _as_matrix(node, ir.Shape(weight.shape))
    groups = (
        weight.astype(np.float64).reshape(columns, rows) if _is_stored_by_column(node) else weight.T.astype(np.float64)
    )
    if asked.block:
        groups = np.pad(groups, ((0, 0), (0, -rows % asked.block))).reshape(-1, asked.block)
    signal = float(np.mean(np.square(groups)))
    steps = np.abs(groups).max(axis=1, initial=0.0) / (2 ** (asked.format.bits - 1) - 1)
    return float(np.mean(np.square(steps)) / 12 / signal) if signal else 0.0


def _last_layers(model: ir.Model) -> set[ir.Node]:
    """The nodes with a weight whose result reaches an output of the model without another one in between."""
    nodes: set[ir.Node] = set()
    for output in model.graph.outputs:
        nodes |= set(_upstream(output.producer()))
    return nodes


def _upstream(node: ir.Node | None) -> Iterator[ir.Node]:
    while node is not None:
        if _weight(node) is not None and node.op_type in ("Conv", "Gemm", "MatMul"):
            yield node
            return
        if node.op_type not in _FLOAT_EDGES:
            return
        node = next((v.producer() for v in node.inputs if v is not None and v.producer() is not None), None)

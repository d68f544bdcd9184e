"""What the rules need to know of a model: which options matter for it follows from what it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnxopt.graph import signature
from onnxopt.graph.match import is_constant
from onnxopt.graph.ort_traps import trapping_optimizers
from onnxopt.graph.placement.cuda_graphs import blocking_nodes, computes_shapes
from onnxopt.graph.signature import Tensor

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
_MATRIX_PRODUCTS = frozenset({"Gemm", "MatMul"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_CODING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_MIN_BITS = 8  # of constants that may become floats in memory
_ATTENTION = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})


@dataclasses.dataclass(frozen=True)
class Facts:
    """ops: op types anywhere in the model. dtypes: ONNX's names, of every value that is declared.

    dynamic: some input's shape is not fixed. convolutions_1d: some convolution runs over one spatial dim.
    convolutions_2d: some convolution runs over height and width. float32_depthwise: some depthwise convolution over
    height and width that ONNX Runtime runs itself takes float32. refused_nhwc: what ONNX Runtime 1.31 refuses to
    run under prefer_nhwc and fuse_conv_bias, "" for nothing. computes_shapes: some nodes compute shapes from shapes.
    float32_products: some product or convolution takes float32. blocking: see graph/placement/cuda_graphs.py.
    dequantized_constants: constants of 8 bits and more are dequantized, and none of 4 bits or in blocks, which would
    take several times the memory as floats. trapping_optimizers: see graph/ort_traps.py.
    """

    inputs: tuple[Tensor, ...]
    ops: frozenset[str]
    dtypes: frozenset[str]
    float32_products: bool
    convolutions_1d: bool
    convolutions_2d: bool
    refused_nhwc: str
    blocking: tuple[tuple[str, str], ...]
    float32_depthwise: bool = False
    computes_shapes: bool = False
    dequantized_constants: bool = False
    float8_codes: bool = False
    trapping_optimizers: tuple[str, ...] = ()

    @property
    def dynamic(self) -> bool:
        return bool(signature.symbols(self.inputs)) or any(t.dims is None for t in self.inputs)

    @property
    def convolutions(self) -> bool:
        return bool(self.ops & _CONVOLUTIONS)

    @property
    def products(self) -> bool:
        return bool(self.ops & _MATRIX_PRODUCTS)

    @property
    def attention(self) -> bool:
        return bool(self.ops & _ATTENTION)


def of(model: ir.Model) -> Facts:
    nodes = list(_nodes(model))
    values = [v for node in nodes for v in (*node.inputs, *node.outputs) if v is not None]
    dtypes = frozenset(signature.dtype_name(v.dtype) for v in values if v.dtype is not None)
    # A file may state few dtypes: where none is stated, a 16-bit model's products are taken to be 16 bits wide.
    unstated = not dtypes & {"float16", "bfloat16"}
    return Facts(
        inputs=signature.inputs_of(model),
        ops=frozenset(n.op_type for n in nodes),
        dtypes=dtypes,
        float32_products=any(n.op_type in _PRODUCTS and _takes_float32(n, unstated) for n in nodes),
        convolutions_1d=any(n.op_type in _CONVOLUTIONS and _spatial_dims(n) == 1 for n in nodes),
        convolutions_2d=any(n.op_type in _CONVOLUTIONS and _spatial_dims(n) == 2 for n in nodes),
        refused_nhwc=next(filter(None, map(_refused_nhwc, nodes)), ""),
        blocking=tuple(blocking_nodes(model)),
        float32_depthwise=any(_is_depthwise(n) and _takes_float32(n, unstated) for n in model.graph.all_nodes()),
        computes_shapes=computes_shapes(model),
        dequantized_constants=_dequantizes_constants(nodes),
        float8_codes=any(n.op_type in _CODING and _has_float8(n) for n in nodes),
        trapping_optimizers=trapping_optimizers(model),
    )


def _dequantizes_constants(nodes: list[ir.Node]) -> bool:
    """Whether ONNX Runtime should dequantize the model's constants at load."""
    constants = [n for n in nodes if n.op_type == "DequantizeLinear" and is_constant(n.inputs[0])]
    packed = any(n.attributes.get_int("block_size", 0) or _bits(n.inputs[0]) < _MIN_BITS for n in constants)
    return bool(constants) and not packed


def _has_float8(node: ir.Node) -> bool:
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    dtypes = [v.dtype if v.const_value is None else v.const_value.dtype for v in values]
    return any(d is not None and d.name.startswith("FLOAT8") for d in dtypes)


def _bits(value: ir.Value | None) -> int:
    return 0 if value is None or value.const_value is None else value.const_value.dtype.bitwidth


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _takes_float32(node: ir.Node, unstated: bool) -> bool:
    """Whether its first operand is float32; `unstated` where the dtype is not known."""
    first = node.inputs[0] if node.inputs else None
    return unstated if first is None or first.dtype is None else first.dtype == ir.DataType.FLOAT


def _refused_nhwc(node: ir.Node) -> str:
    """What of a convolution ONNX Runtime refuses under prefer_nhwc and fuse_conv_bias (tried with 1.31)."""
    if node.op_type == "ConvTranspose":
        if node.inputs[2:] not in ((), (None,)):
            return "a ConvTranspose with a bias"
        return "" if _spatial_dims(node) in (2, None) else "a ConvTranspose of one or three dims"
    if node.op_type != "Conv" or _spatial_dims(node) != 1 or node.attributes.get_int("group", 1) == 1:
        return ""
    shape = None if node.inputs[1] is None else node.inputs[1].shape
    return "" if shape is not None and shape[1] == 1 else "a Conv of one dim with several groups"


def _is_depthwise(node: ir.Node) -> bool:
    """Whether a node is a convolution over height and width of one channel at a time."""
    if node.op_type != "Conv" or _spatial_dims(node) != 2 or node.attributes.get_int("group", 1) == 1:
        return False
    weight = node.inputs[1]
    return weight is not None and weight.shape is not None and weight.shape[1] == 1


def _spatial_dims(conv: ir.Node) -> int | None:
    """The dims that a convolution runs over, None where neither its attributes nor its weight tell."""
    kernel = conv.attributes.get_ints("kernel_shape", ())
    if kernel:
        return len(kernel)
    weight = conv.inputs[1] if len(conv.inputs) > 1 else None
    return None if weight is None or weight.shape is None else len(weight.shape) - 2

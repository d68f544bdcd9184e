"""What lower precision needs to know of operators: which compute in 16 bits, and which need float32, and why."""

from __future__ import annotations

import enum
import functools

import onnx
import onnx_ir as ir

from onnxopt.graph.precision.values import FLOATS
from onnxopt.program.operators import row_operators
from onnxopt.program.operators import table as operators

CONTRIB = "com.microsoft"
FLOAT = ir.DataType.FLOAT
_CAST_TO = (FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)  # 16 bits: before outputs that are caches
_CODES = frozenset({"QuantizeLinear", "DequantizeLinear"})


class Sort(enum.Enum):
    """PRODUCT: sums of products, by tensor cores. MOVE: copies or selects elements. ELEMENTWISE, NORM: operators whose
    kernels compute in float32 whatever is stored. STATISTIC: reduces rows. FLOAT: everything else."""

    PRODUCT = enum.auto()
    MOVE = enum.auto()
    ELEMENTWISE = enum.auto()
    NORM = enum.auto()
    STATISTIC = enum.auto()
    FLOAT = enum.auto()


_PRODUCTS = frozenset(
    {
        ("", "MatMul"),
        ("", "Gemm"),
        ("", "Conv"),
        ("", "ConvTranspose"),
        ("", "Attention"),
        (CONTRIB, "FusedMatMul"),
        (CONTRIB, "MatMulNBits"),
    }
    | {(CONTRIB, name) for name in ("FusedMatMul", "MatMulNBits")}
    | {(CONTRIB, name) for name in ("Attention", "MultiHeadAttention", "GroupQueryAttention")}
)
# Attention averages values, by position among its operands: those of this run and those of a cache, with their bias.
_VALUES = {
    ("", "Attention"): (2, 5),
    (CONTRIB, "GroupQueryAttention"): (2, 4),
    (CONTRIB, "MultiHeadAttention"): (2, 3, 7),
    (CONTRIB, "DecoderMaskedMultiHeadAttention"): (2, 6),
}
_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "Concat", "Split", "Slice", "Gather",
     "GatherND", "GatherElements", "ScatterND", "ScatterElements", "Identity", "Pad", "DepthToSpace", "SpaceToDepth",
     "Trilu", "Compress", "ReverseSequence", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize"}
)  # fmt: skip
# Their result jumps, or turns with the size of the operand: a rounding of 2^-11 of a large operand changes all of it.
_STEEP = frozenset(
    {"Sin", "Cos", "Tan", "Asin", "Acos", "Sinh", "Cosh", "Acosh", "Atanh", "Floor", "Ceil", "Round", "Mod",
     "ReduceProd"}
)  # fmt: skip
# The operands whose small elements decide: a zero in their place gives infinity.
_SMALL_DECIDES = {"Log": 0, "ReduceLogSum": 0, "Reciprocal": 0, "Sqrt": 0, "Div": 1, "Pow": 0}
_ORDERS = frozenset({"ArgMax", "ArgMin", "TopK", "NonMaxSuppression"})  # which of their elements are equal decides
_NORMS_OF_MEANS = frozenset(
    {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}
)
_SMOOTH_POWERS = (1, 2, 3, 4)
_COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
# Operands that are float32 beside 16-bit data.
_FLOAT_OPERANDS = {"Resize": (1, 2)}
# Results that are float32 beside 16-bit ones: means and deviations.
_FLOAT_RESULTS = dict.fromkeys(
    ("LayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (1, 2)
)
_BOUNDS = {"Clip": (1, 2), "Max": None, "Min": None}  # operands that may be replaced by the dtype's largest number
_TERMS = {"Add": (0, 1), "Sub": (0, 1), "Sum": None, "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,)}


def sort_of(node: ir.Node) -> Sort:
    """How an operator behaves when its tensors are stored in 16 bits."""
    key = (node.domain, node.op_type)
    if key in _PRODUCTS:
        return Sort.PRODUCT
    if node.domain == "" and node.op_type in _MOVES:
        if node.op_type.startswith("Scatter") and node.attributes.get_string("reduction", "none") != "none":
            return Sort.FLOAT  # ONNX Runtime's CPU provider refuses them when it runs
        nearest = node.attributes.get_string("mode", "nearest") == "nearest"
        return Sort.MOVE if node.op_type != "Resize" or nearest else Sort.FLOAT
    if node.op_type == "Cast" and node.domain == "":
        return Sort.ELEMENTWISE if node.attributes.get_int("to", 0) in _CAST_TO else Sort.FLOAT
    if key in operators.OPERATORS and node.op_type not in _STEEP | _CODES:
        return Sort.ELEMENTWISE
    if key in row_operators.ROW_OPERATORS and not node.op_type.startswith("Arg"):
        return Sort.STATISTIC if node.op_type.startswith("Reduce") else Sort.NORM
    return Sort.FLOAT


def is_steep(node: ir.Node) -> bool:
    """Whether an error of the operand is worth more in the result than its share of the operand."""
    to_whole = node.op_type == "Cast" and not ir.DataType(node.attributes.get_int("to", 1)).is_floating_point()
    return node.domain == "" and (node.op_type in _STEEP or to_whole)


def is_order(node: ir.Node) -> bool:
    """Whether the result says which elements are larger, so that equal ones are another result."""
    return node.domain == "" and node.op_type in _ORDERS


def is_logarithm(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Log", "ReduceLogSum")


def is_sum(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Add", "Sub", "Sum")


def differences_near_0(node: ir.Node) -> list[ir.Value]:
    """The exponentials that a number or another exponential is subtracted from: near exp(0) little is left."""
    if node.domain != "" or node.op_type not in ("Sub", "Add"):
        return []
    others = [v.const_value for v in node.inputs if v is not None and not v.is_graph_input()]
    if node.op_type == "Add" and not any(t is not None and t.size and (t.numpy() < 0).all() for t in others):
        return []
    return [v for v in node.inputs if v is not None and getattr(v.producer(), "op_type", "") == "Exp"]


def subtracts_means(node: ir.Node) -> bool:
    """Whether a norm subtracts the mean of its first operand's rows."""
    return node.op_type in _NORMS_OF_MEANS


def small_decides(node: ir.Node) -> ir.Value | None:
    """The operand of the node whose elements near 0 must not become 0; None where there is none."""
    position = _SMALL_DECIDES.get(node.op_type) if node.domain == "" else None
    if position is None or (node.op_type == "Pow" and _exponent(node) in _SMOOTH_POWERS):
        return None
    return node.inputs[position]


def is_gate(node: ir.Node, position: int, gates: bool) -> bool:
    """Whether an operand of integers is a factor: its rounding is worth no more in the result than in itself."""
    return gates and node.domain == "" and node.op_type == "Mul" and position in (0, 1)


def is_comparison(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _COMPARISONS


def is_bound(node: ir.Node, position: int) -> bool:
    """Whether an operand only bounds the others, so that the largest number stands for any larger one."""
    positions = _BOUNDS.get(node.op_type, ()) if node.domain == "" else ()
    return positions is None or position in positions


def is_term(node: ir.Node, position: int) -> bool:
    """Whether an operand is added, so that its error counts beside the sum."""
    positions = _TERMS.get(node.op_type, ()) if node.domain == "" else ()
    return positions is None or position in positions


def float_operands(node: ir.Node) -> tuple[int, ...]:
    """The positions of operands that stay float32 beside 16-bit data."""
    return _FLOAT_OPERANDS.get(node.op_type, ()) if node.domain == "" else ()


def float_results(node: ir.Node) -> tuple[int, ...]:
    """The positions of results that are float32 beside 16-bit data."""
    return _FLOAT_RESULTS.get(node.op_type, ())


def takes(node: ir.Node, dtype: ir.DataType, version: int | None) -> bool:
    """Whether the operator's definition allows 16-bit floats of this dtype. version: of the operator's domain."""
    if node.domain != "" or version is None:
        return node.domain == CONTRIB and dtype == ir.DataType.FLOAT16
    return _text(dtype) in _allowed(node.op_type, version)


@functools.cache
def _allowed(op_type: str, version: int) -> frozenset[str]:
    """The tensor types that an operator's first operand and first result may both have, float32 among them."""
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return frozenset()
    own = {i.type_str for i in (*schema.inputs[:1], *schema.outputs[:1])}
    floats = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    floats = {name: types for name, types in floats.items() if "tensor(float)" in types}
    wanted = [types for name, types in floats.items() if name in own] or list(floats.values())
    return frozenset(set.intersection(*wanted)) if wanted else frozenset()


def _text(dtype: ir.DataType) -> str:
    return f"tensor({dtype.name.lower()})"


def _exponent(node: ir.Node) -> float | None:
    value = node.inputs[1]
    tensor = value.const_value if value is not None and not value.is_graph_input() else None
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def averaged(node: ir.Node) -> list[ir.Value | None]:
    """The float operands as large as which the results of an operator may get; None in place of the others.

    Of attention, the values alone: the scores become weights, whose sum is 1.
    """
    values = _VALUES.get((node.domain, node.op_type))
    packed = values is not None and (len(node.inputs) <= values[0] or node.inputs[values[0]] is None)
    positions = range(len(node.inputs)) if values is None else (0, *values) if packed else values
    return [
        v if v is not None and k in positions and (v.dtype is None or v.dtype in FLOATS) else None
        for k, v in enumerate(node.inputs)
    ]

"""Which operators ONNX Runtime is known to run, or to refuse with an error, where a dim of their operands is 0.

Others can end the process. tests/verification/test_empty_operators.py runs each row in a process of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

# The operators of the main domain and of com.microsoft that were run with each symbolic dim 0, and all of them.
TAKE_EMPTY = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "Attention",
     "AveragePool", "BatchNormalization", "BiasGelu", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Compress",
     "Concat", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum", "DepthToSpace",
     "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Elu", "Equal", "Erf", "Exp", "Expand",
     "FastGelu", "Flatten", "Floor", "FusedGemm", "FusedMatMul", "Gather", "GatherElements", "GatherND", "Gelu",
     "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample", "HardSigmoid",
     "HardSwish", "Hardmax", "Identity", "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Less",
     "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "LpPool", "MatMul", "MatMulInteger", "Max", "MaxPool",
     "Mean", "MeanVarianceNormalization", "Min", "Mish", "Mod", "Mul", "MultiHeadAttention", "Neg", "NonZero", "Not",
     "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "QuickGelu", "RMSNormalization", "RNN", "Range",
     "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
     "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize", "ReverseSequence", "RotaryEmbedding",
     "Round", "ScatterElements", "ScatterND", "Selu", "Shape", "Shrink", "Sigmoid", "Sign",
     "SimplifiedLayerNormalization", "Sin", "Sinh", "Size", "SkipLayerNormalization",
     "SkipSimplifiedLayerNormalization", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt",
     "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu",
     "Unique", "Unsqueeze", "Where", "Xor"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ends:
    """Why ONNX Runtime 1.31 can end the process where a dim is 0. batch, rest: whether it or other dims may be."""

    batch: bool
    rest: bool
    reason: str


ENDS: Mapping[str, Ends] = {
    "Einsum": Ends(False, False, "ONNX Runtime divides by the size of a dim (SIGFPE)"),
    "GRU": Ends(False, False, "ONNX Runtime divides by the batch, and reads the last step of none"),
    "GroupQueryAttention": Ends(False, True, "ONNX Runtime divides by the batch (SIGFPE)"),
    "InstanceNormalization": Ends(True, False, "ONNX Runtime divides by the number of pixels, and reads the first"),
    "LSTM": Ends(False, False, "ONNX Runtime divides by the batch (SIGFPE)"),
}
_DOMAINS = ("", "com.microsoft")


def why_not_empty(operators: Collection[str], *, batch: bool) -> str:
    """Why a dim of 0 is not tried in a model of these operators, "" where it is. batch: whether the dim is the batch.

    operators: as `Traits.operators` has them.
    """
    for name in sorted(operators):
        domain, _, op_type = name.rpartition("::")
        ends = ENDS.get(op_type)
        if ends is not None and not (ends.batch if batch else ends.rest):
            return f"{op_type}: {ends.reason}"
        if ends is None and (domain not in _DOMAINS or op_type not in TAKE_EMPTY):
            return f"{name.replace('::', '.')} is not known to take it"
    return ""

"""The dtype of a node's result, by the row of its operator.

Elementwise and rowwise operators have rows in program/. Operators without such a row, for which there is a rule of
shapes (graph/shapes/rules.py), have theirs here. For any other operator onnx's schema says the dtype, or nothing does.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.shapes import contrib_rules
from onnxopt.program.operators.result_dtypes import ResultDtype, operand_dtype, same, tensor_dtype
from onnxopt.program.operators.row_operators import ROW_OPERATORS
from onnxopt.program.operators.table import OPERATORS

_CONTRIB = "com.microsoft"
OTHERS: dict[tuple[str, str], ResultDtype] = {
    ("", "AveragePool"): same,
    ("", "CastLike"): operand_dtype(1),
    ("", "Concat"): same,
    ("", "ConstantOfShape"): tensor_dtype("value", default="float32"),
    ("", "Conv"): same,
    ("", "ConvTranspose"): same,
    ("", "CumSum"): same,
    ("", "DepthToSpace"): same,
    ("", "Dropout"): same,
    ("", "Expand"): same,
    ("", "Gather"): same,
    ("", "Hardmax"): same,
    ("", "MatMul"): same,
    ("", "Flatten"): same,
    ("", "MaxPool"): same,
    ("", "Pad"): same,
    ("", "Range"): same,
    ("", "Reshape"): same,
    ("", "Resize"): same,
    ("", "SimplifiedLayerNormalization"): same,  # ONNX Runtime's, in ONNX's domain
    ("", "Slice"): same,
    ("", "Tile"): same,
    ("", "Transpose"): same,
    ("", "Trilu"): same,
    ("", "Unsqueeze"): same,
    (_CONTRIB, "Attention"): same,
    (_CONTRIB, "BiasGelu"): same,
    (_CONTRIB, "FastGelu"): same,
    (_CONTRIB, "Gelu"): same,
    (_CONTRIB, "MultiHeadAttention"): same,
    (_CONTRIB, "RotaryEmbedding"): same,
    (_CONTRIB, "SkipLayerNormalization"): same,
    (_CONTRIB, "SkipSimplifiedLayerNormalization"): same,
    **{key: dtype for key, (_, dtype) in contrib_rules.RULES.items()},
}


def result_dtype_of(node: ir.Node) -> ResultDtype | None:
    """The rule for the dtype of the node's first output; None where the operator has no row."""
    key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
    if key in OPERATORS:
        return OPERATORS[key].result
    if key in ROW_OPERATORS:
        return ROW_OPERATORS[key][0].result  # rows of one operator differ in versions, not in this
    return OTHERS.get(key)

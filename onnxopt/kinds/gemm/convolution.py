"""1x1 convolutions in NHWC as GEMMs: the N * H * W pixels are rows of C numbers, and the weight is a [K, C] matrix."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.fusion import channels_last
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm.steps import GrowingGemm
from onnxopt.program.gemm import DTYPES


def start(node: ir.Node, shapes: Shapes) -> GrowingGemm | str:
    """The GEMM of a Conv and its bias alone, or the reason why the Conv is no GEMM."""
    conv = channels_last.sandwich(node, shapes)
    if isinstance(conv, str):
        return conv
    dims = shapes.dims(conv.w)
    is_pointwise = conv.window is not None and conv.window.is_pointwise
    if dims is None or len(dims) != 2 or conv.group != 1 or not is_pointwise:
        return "The Conv is no 1x1 convolution with a constant weight, without strides, padding and groups"
    dtypes = {shapes.dtype(v) for v in (conv.x, conv.w, conv.y) if v is not None}
    dtype = next(iter(dtypes))
    if len(dtypes) != 1 or dtype is None or dtype.name not in DTYPES:
        return f"A Conv of {' and '.join(sorted(str(d) for d in dtypes))} runs as ONNX Runtime's own kernel"
    gemm = GrowingGemm(list(conv.nodes), conv.x, conv.w, conv.y, transpose_b=True)
    gemm.bias = conv.bias
    return gemm

"""1x1 convolutions in NHWC as GEMMs: the N * H * W pixels are rows of C numbers, and the weight is a [K, C] matrix.

Where every sample has a weight of its own (graph/layout/gated_weights.py), its H * W pixels are such rows:

    x [N, H, W, C] -> Transpose -> Reshape [N, 1, C, H * W] -> MatMul(w [N, 1, K, C], .) -> Reshape -> Transpose -> y
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.fusion import channels_last
from onnxopt.graph.layout.orders import TO_NCHW, TO_NHWC, transposes
from onnxopt.graph.match import only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm.growing import GrowingGemm
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


def sample_product(node: ir.Node, shapes: Shapes) -> GrowingGemm | None:
    """The GEMM of a MatMul that is a 1x1 convolution whose weight each sample has for itself; None for others."""
    w, columns = node.inputs[0], node.inputs[1]
    flatten = columns.producer() if columns is not None else None
    turn = flatten.inputs[0].producer() if flatten is not None and flatten.inputs[0] is not None else None
    spread = only_consumer(node.outputs[0])
    back = only_consumer(spread.outputs[0]) if spread is not None else None
    if node.op_type != "MatMul" or w is None or columns is None or flatten is None or turn is None:
        return None
    if spread is None or back is None:
        return None
    reshapes = all((n.op_type, n.domain) == ("Reshape", "") for n in (flatten, spread))
    private = all(only_consumer(n.outputs[0]) is not None for n in (turn, flatten))
    if not reshapes or not private or not transposes(turn, TO_NCHW) or not transposes(back, TO_NHWC):
        return None
    x, y = turn.inputs[0], back.outputs[0]
    assert x is not None
    x_dims, w_dims, y_dims, flat = (shapes.dims(v) for v in (x, w, y, columns))
    if (
        x_dims is None
        or w_dims is None
        or y_dims is None
        or flat is None
        or len(x_dims) != len(w_dims)
        or len(w_dims) != len(flat)
    ):
        return None
    samples, height, width, channels = x_dims
    if not isinstance(height, int) or not isinstance(width, int) or not isinstance(channels, int):
        return None
    dims = (
        (samples, 1, w_dims[2], channels),
        (samples, 1, channels, height * width),
        (samples, height, width, w_dims[2]),
    )
    if (w_dims, flat, y_dims) != dims or len({shapes.dtype(v) for v in (x, w, y)}) != 1:
        return None
    return GrowingGemm([turn, flatten, node, spread, back], x, w, y, transpose_b=True, per_sample=True)

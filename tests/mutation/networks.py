"""Small networks that have kernels of every kind between them, with symbolic dims wherever exporters have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from cases import attention as cached_attention
from cases import depthwise as depthwise_models
from cases import experts as experts_models
from cases import flash_attention as flash_attention_models
from cases import group_norm as group_norm_models
from cases import image_convolution as image_convolution_models
from cases import pool as pool_models
from cases import squeeze_excite as squeeze_excite_models
from cases.block import Halves
from tests.support import graphs


def _network(
    inputs: str, outputs: str, body: str, weights: Mapping[str, tuple[int, ...]], constants: str = ""
) -> onnx.ModelProto:
    """A graph in onnx's text, and weights that are drawn so that activations keep their size."""
    model = ir.to_proto(graphs.graph(inputs, outputs, body, constants=constants))
    rng = np.random.default_rng(len(body))
    for name, shape in weights.items():
        drawn = rng.standard_normal(shape) / (np.sqrt(shape[-2]) if len(shape) > 1 else 4.0)
        drawn = 1 + drawn if name.startswith("g") else drawn
        model.graph.initializer.append(numpy_helper.from_array(drawn.astype(np.float32), name))
    return model


def pointwise() -> onnx.ModelProto:
    """A mask, a gate with constants, and a clamp."""
    return _network(
        "float[batch, tokens, 24] x, float[batch, tokens, 24] u, bool[batch, tokens, 1] keep",
        "float[batch, tokens, 24] y",
        """a = Mul(x, scale)  b = Add(a, c)  s = Sigmoid(b)  g = Mul(b, s)  d = Sub(g, u)  e = Div(d, k)
           y = Where(keep, e, x)""",
        {"c": (24,)}, "float scale = {0.7}, float k = {1.5}",
    )  # fmt: skip


def rowwise() -> onnx.ModelProto:
    """A norm of a sum, and a softmax of dynamic length under an additive mask."""
    return _network(
        """float[batch, tokens, 40] x, float[batch, tokens, 40] r, float[batch, tokens, keys] scores,
           float[batch, 1, keys] mask""",
        "float[batch, tokens, 40] y, float[batch, tokens, keys] p",
        """z = Add(x, r)  m = ReduceMean<keepdims = 1>(z, last)  d = Sub(z, m)  q = Mul(d, d)
           v = ReduceMean<keepdims = 1>(q, last)  e = Add(v, eps)  o = Sqrt(e)  n = Div(d, o)
           w = Mul(n, g)  y = Add(w, b)  t = Mul(scores, k)  f = Add(t, mask)  p = Softmax<axis = -1>(f)""",
        {"g": (40,), "b": (40,)}, "int64[1] last = {-1}, float eps = {1e-5}, float k = {0.25}",
    )  # fmt: skip


def scan() -> onnx.ModelProto:
    """A running total along tokens."""
    return _network(
        "float[batch, tokens, 12] x", "float[batch, tokens, 12] y",
        "a = Mul(x, k)  t = CumSum(a, axis)  y = Tanh(t)", {}, "float k = {0.5}, int64 axis = {1}",
    )  # fmt: skip


def gemm() -> onnx.ModelProto:
    """A feed-forward layer with a residual."""
    return _network(
        "float[batch, tokens, 32] x", "float[batch, tokens, 32] y",
        """h = MatMul(x, w1)  a = Add(h, b1)  e = Gelu(a)  o = MatMul(e, w2)  c = Add(o, b2)  y = Add(c, x)""",
        {"w1": (32, 64), "b1": (64,), "w2": (64, 32), "b2": (32,)},
    )  # fmt: skip


def encoder() -> onnx.ModelProto:
    """A layer of BERT as exporters spell it, whose attention and projections are rewritten."""
    body = "".join(
        f"""{x}m = MatMul(x, w{x})  {x}a = Add({x}m, b{x})  {x}r = Reshape({x}a, split)
            {x}t = Transpose<perm = [0, 2, {"3, 1" if x == "k" else "1, 3"}]>({x}r)  """
        for x in "qkv"
    )
    body += """s = MatMul(qt, kt)  d = Div(s, root)  f = Add(d, mask)  p = Softmax<axis = -1>(f)  o = MatMul(p, vt)
               ot = Transpose<perm = [0, 2, 1, 3]>(o)  r = Reshape(ot, whole)  m = MatMul(r, wo)  a = Add(m, bo)
               z = Add(a, x)  n = LayerNormalization<axis = -1, epsilon = 1e-5>(z, g, b)
               h = MatMul(n, w1)  i = Add(h, b1)  e1 = Div(i, two)  e2 = Erf(e1)  e3 = Add(e2, one)  e4 = Mul(i, e3)
               e = Mul(e4, half)  j = MatMul(e, w2)  l = Add(j, b2)  y = Add(l, n)"""
    weights: dict[str, tuple[int, ...]] = {f"w{x}": (32, 32) for x in "qkvo"} | {f"b{x}": (32,) for x in "qkvo"}
    weights |= {"g": (32,), "b": (32,), "w1": (32, 64), "b1": (64,), "w2": (64, 32), "b2": (32,)}
    return _network(
        "float[batch, tokens, 32] x, float[batch, 1, 1, tokens] mask", "float[batch, tokens, 32] y", body, weights,
        """float root = {2.828427}, float two = {1.4142135}, float one = {1}, float half = {0.5},
           int64[4] split = {0, 0, 4, 8}, int64[3] whole = {0, 0, 32}""",
    )  # fmt: skip


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "pointwise": pointwise,
    "rowwise": rowwise,
    "scan": scan,
    "gemm": gemm,
    "encoder": encoder,
    "attention": lambda: cached_attention.graph(tokens=1, each=1),
    "flash_attention": lambda: flash_attention_models.Case(2, 5, 9, 2, 64, bias=(True, False), known=False).model(),
    "experts": lambda: experts_models.Case(5).model(),
    "group_norm": lambda: group_norm_models.Case(
        (2, 5, 5, 32), 4, "float32", "spelled_open", "", "affine_silu", known=False
    ).model(),
    "squeeze_excite": lambda: squeeze_excite_models.Case((2, 8, 8, 32), 8, known=False).model(),
    "image_convolution": lambda: image_convolution_models.Case(
        (2, 3, 16, 16), 16, pads=(1, 1, 1, 1), strides=(2, 2), dtype="float32", behind="silu", known=False
    ).model(),
    "depthwise": lambda: depthwise_models.Case((2, 9, 9, 32), pads=(1, 1, 1, 1), behind="silu", known=False).model(),
    "pool": lambda: ir.to_proto(
        pool_models.model(pool_models.of("max", "float32", (3, 3), pads=(1, 1, 1, 1)), "N, H, W, 16")
    ),
    "block": lambda: Halves(symbolic="N").model(),
}

"""Models of lower precision with float32 nodes at any place in what ONNX Runtime fuses: Casts at every edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxopt.graph import normalize, precision, rewrite
from onnxopt.verification.lowering import ranges
from tests.support.graphs import graph

_DRAWN = np.random.default_rng(0).standard_normal
_SCALARS = (
    "float two = {2}, float three = {3}, float half = {0.5}, float one = {1}, float eps = {1e-5}, "
    "float root = {1.41421356}"
)
_ARRAYS = {"w": (8,), "b": (8,), "k": (8, 8), "l": (8, 8), "c": (4, 3, 3, 3), "t": (4,)}
_CONSTANTS = ", ".join(
    [_SCALARS, "float cubes = {0.044715}, float tanh = {0.7978845608}, float quick = {1.702}",
     "int64[1] last = {-1}, int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}",
     "int64[2] rows = {-1, 8}, int64 i0 = {0}, int64 i7 = {7}"]
    + [f"float[{','.join(map(str, s))}] {n} = {{{', '.join(map(str, _DRAWN(s).ravel()))}}}" for n, s in _ARRAYS.items()]
)  # fmt: skip
_NORM = (
    "m = ReduceMean(h, last) d = Sub(h, m) p = Pow(d, two) v = ReduceMean(p, last) s = Add(v, eps) r = Sqrt(s) "
    "n = Div(d, r) q = Mul(n, w) a = Add(q, b) y = MatMul(a, l)"
)
_RMS = (
    "p = Pow(h, two) v = ReduceMean(p, last) s = Add(v, eps) r = Sqrt(s) n = Div(h, r) q = Mul(n, w) y = MatMul(q, l)"
)
_LINEAR = "f = MatMul(x, k) h = Add(f, b)"
_HEADS = " ".join(
    f"{n}0 = MatMul(x, k) {n}1 = Add({n}0, {bias}) {n}2 = Reshape({n}1, heads) {n} = Transpose<perm = [{perm}]>({n}2)"
    for n, bias, perm in (("q", "b", "0, 2, 1, 3"), ("e", "w", "0, 2, 3, 1"), ("v", "w", "0, 2, 1, 3"))
)
# By the fusion of ONNX Runtime that they are for.
BODIES = {
    "LayerNormFusion": f"h = MatMul(x, k) {_NORM}",
    "LayerNormFusion of an input": f"h = Relu(x) {_NORM}",
    "SkipLayerNormFusion": f"f = MatMul(x, k) h = Add(f, x) {_NORM}",
    "SkipLayerNormFusion with a bias": f"f = MatMul(x, k) g = Add(f, b) h = Add(g, x) {_NORM}",
    "SkipLayerNormFusion of the operator": "f = MatMul(x, k) h = Add(f, x) "
    "a = LayerNormalization(h, w, b) y = MatMul(a, l)",
    "SimplifiedLayerNormFusion": f"h = MatMul(x, k) {_RMS}",
    "SkipSimplifiedLayerNormFusion": f"f = MatMul(x, k) h = Add(f, x) {_RMS}",
    "GeluFusion, BiasGeluFusion": f"{_LINEAR} e = Div(h, root) g = Erf(e) a = Add(g, one) p = Mul(h, a) "
    "q = Mul(p, half) y = MatMul(q, l)",
    "BiasGeluFusion": f"{_LINEAR} g = Gelu(h) y = MatMul(g, l)",
    "FastGeluFusion": f"{_LINEAR} p = Pow(h, three) c1 = Mul(p, cubes) d = Add(h, c1) e = Mul(d, tanh) g = Tanh(e) "
    "a = Add(g, one) q = Mul(h, a) r = Mul(q, half) y = MatMul(r, l)",
    "QuickGeluFusion": f"{_LINEAR} a = Mul(h, quick) s = Sigmoid(a) g = Mul(h, s) y = MatMul(g, l)",
    "BiasSoftmaxFusion": "h = MatMul(x, k) u = Transpose<perm = [0, 2, 1]>(h) s = MatMul(h, u) m = ReduceMax(s, last) "
    "a = Add(s, m) p = Softmax<axis = -1>(a) y = MatMul(p, h)",
    "AttentionFusion": f"{_HEADS} s = MatMul(q, e) d = Div(s, two) p = Softmax<axis = -1>(d) o = MatMul(p, v) "
    "o1 = Transpose<perm = [0, 2, 1, 3]>(o) o2 = Reshape(o1, flat) o3 = MatMul(o2, l) o4 = Add(o3, b) y = Add(o4, x)",
    "GemmActivationFusion": "f = Flatten<axis = 2>(x) g = Gemm(f, k, b) r = Relu(g) h = Gemm(r, l) "
    "a = Tanh(h) y = Gemm(a, k)",
    "MatMulScaleFusion, MatmulTransposeFusion": "h = MatMul(x, k) s = Mul(h, half) u = Transpose<perm = [0, 2, 1]>(h) "
    "d = Div(u, two) m = MatMul(s, d) n = Mul(m, half) y = MatMul(n, h)",
    "MatMulAddFusion": f"{_LINEAR} r = Relu(h) f2 = MatMul(r, l) y = Add(f2, w)",
    "ConvActivationFusion": "g = Conv<pads = [1, 1, 1, 1]>(i, c, t) r = Relu(g) "
    "p = MaxPool<kernel_shape = [2, 2]>(r) y = Tanh(p)",
    "NchwcTransformer, which ends the process": "h = MatMul(x, k) u = Transpose<perm = [1, 0, 2]>(h) m = MatMul(u, l) "
    "a = Add(m, b) v = Transpose<perm = [1, 0, 2]>(a) y = MatMul(v, k)",
    "NchwcTransformer of a Gemm": "h = MatMul(x, k) u = Transpose<perm = [1, 2, 0]>(h) "
    "v = Transpose<perm = [2, 0, 1]>(u) f = Reshape(v, rows) g = Gemm(f, l, b) r = Relu(g) y = Gemm(r, k)",
    "NhwcTransformer of 16 bits": "g = Conv<pads = [1, 1, 1, 1]>(i, c, t) u = Transpose<perm = [0, 2, 3, 1]>(g) "
    "r = Relu(u) v = Transpose<perm = [0, 3, 1, 2]>(r) p = GlobalAveragePool(v) y = Sigmoid(p)",
    "EmbedLayerNormFusion, of Gathers": "f = Cast<to = 7>(x) c0 = Clip(f, i0, i7) "
    "n = ReduceMax<keepdims = 0>(c0, last) e = Gather(k, n) g = Gather(l, n) h = Add(e, g) "
    "a = LayerNormalization(h, w, b) y = MatMul(a, l)",
    "ConvAddActivationFusion": "g = Conv<pads = [1, 1, 1, 1]>(i, c, t) h = Conv<pads = [1, 1, 1, 1]>(i, c) "
    "a = Add(g, h) r = Relu(a) y = HardSwish(r)",
}  # fmt: skip


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    """Sets of nodes that leave a Cast at each edge of the graph, in either direction."""
    yield from {(), *((name,) for name in names), *(tuple(names[:k]) for k in range(len(names)))}


def _converted(normalized: ir.Model, measured: dict[str, precision.Range], kept: tuple[str, ...]) -> bytes:
    """The bytes of the model whose nodes are 16 bit but for these, as `optimize` normalizes it again."""
    model = normalized.clone()
    choice = precision.choose(model, measured, ir.DataType.FLOAT16, restored=kept)
    precision.convert(model, choice)
    return ir.to_proto(normalize.normalize(model).model).SerializeToString()


def converted(fusion: str, columns: str, folder: Path, opset: int = 20) -> dict[bytes, tuple[str, ...]]:
    """The converted models of a fusion, with the nodes of each that stay float32. columns: the size of the rows.

    folder: for temporary files.
    """
    body = BODIES[fusion]
    image = "(i, " in body
    inputs, outputs = (
        ("float[N, 3, 8, 8] i", "float[A, B, C, D] y") if image else (f"float[N, T, {columns}] x", "float[] y")
    )
    source = graph(inputs, outputs, body, constants=_CONSTANTS, opset=opset)
    source.graph.outputs[0].shape = None
    normalized = normalize.normalize(source).model
    rewrite.prepare_float32(normalized)
    feeds = {"i": _DRAWN((1, 3, 8, 8))} if image else {"x": _DRAWN((2, 3, 8))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    measured = ranges.measure(normalized, [feeds], ir.DataType.FLOAT16, folder)
    names = [str(n.name) for n in normalized.graph]
    return {_converted(normalized, measured, kept): kept for kept in _subsets(names)}


def cases() -> list[tuple[str, str]]:
    """All fusions, with rows of a known size; norms also with rows of any."""
    return [(fusion, columns) for fusion in BODIES for columns in ("8", "D")[: 1 + ("LayerNorm" in fusion)]]

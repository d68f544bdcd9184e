"""Norms, Softmax and GELU that files of opset 7 to 12 spell out are one operator before values are lowered."""

from __future__ import annotations

import pytest

from onnxopt.graph import normalize, rewrite
from tests.support.graphs import graph

_CONSTANTS = (
    "float two = {2}, float half = {0.5}, float one = {1}, float eps = {1e-5}, float root = {1.41421356}, "
    "float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}, int64 n = {3}, "
    "int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}, "
    "float[8, 8] k = {" + ", ".join(str(0.01 * i) for i in range(64)) + "}"
)
_REST = (
    "d = Sub(h, m) p = Pow(d, two) v = ReduceMean<axes = [-1]>(p) s = Add(v, eps) r = Sqrt(s) i = Div(d, r) "
    "q = Mul(i, w) a = Add(q, b) y = MatMul(a, k)"
)
_NORM = f"m = ReduceMean<axes = [-1]>(h) {_REST}"
_ROWS = {
    "a norm": (f"h = MatMul(x, k) {_NORM}", "LayerNormalization", (7, 9, 11, 12)),
    "a norm whose mean is squeezed": (
        f"h = MatMul(x, k) m0 = ReduceMean<axes = [-1], keepdims = 0>(h) m = Unsqueeze<axes = [-1]>(m0) {_REST}",
        "LayerNormalization", (11, 12),
    ),
    "a norm of a Loop's result": (
        "z = Loop(n, , x) <body = l (int64 t, bool c, float[N, T, 8] e) => (bool o, float[N, T, 8] g) "
        f"{{o = Identity(c) f = MatMul(e, k) g = Tanh(f)}}> h = MatMul(z, k) {_NORM}",
        "LayerNormalization", (11, 12),
    ),
    "a norm in a Loop": (
        "y = Loop(n, , x) <body = l (int64 t, bool c, float[N, T, 8] e) => (bool o, float[N, T, 8] g) "
        f"{{o = Identity(c) h = MatMul(e, k) {_NORM.replace(' y =', ' g =')}}}>",
        "LayerNormalization", (11, 12),
    ),
    "a norm beside ONNX Runtime's operators": (
        f"h = com.microsoft.FusedMatMul(x, k) {_NORM}", "LayerNormalization", (12,)
    ),
    "GELU": (
        "h = MatMul(x, k) d = Div(h, root) e = Erf(d) a = Add(e, one) p = Mul(h, a) q = Mul(p, half) y = MatMul(q, k)",
        "Gelu", (9, 11, 12),
    ),
    "Softmax": (
        "h = MatMul(x, k) m = ReduceMax<axes = [-1]>(h) d = Sub(h, m) e = Exp(d) s = ReduceSum<axes = [-1]>(e) "
        "q = Div(e, s) y = MatMul(q, k)",
        "Softmax", (9, 11, 12),
    ),
    "Softmax of the last axis": (
        "h0 = MatMul(x, k) h = Reshape(h0, heads) s = Softmax<axis = 3>(h) q = Reshape(s, flat) y = MatMul(q, k)",
        "Softmax", (9, 11, 12),
    ),
}  # fmt: skip
_SPELLED = {"ReduceMean", "ReduceMax", "ReduceSum", "Sub", "Sqrt", "Exp", "Erf", "Pow", "Flatten"}


@pytest.mark.parametrize(
    ("name", "opset"), [(name, opset) for name, (_, _, opsets) in _ROWS.items() for opset in opsets]
)
def test_what_old_opsets_spell_out_is_one_operator(name: str, opset: int) -> None:
    body, operator, _ = _ROWS[name]
    model = graph("float[N, T, 8] x", "float[] y", body, constants=_CONSTANTS, opset=opset, contrib="com." in body)
    model.graph.outputs[0].shape = None
    normalized = normalize.normalize(model).model
    rewrite.prepare_float32(normalized)
    operators = [node.op_type for node in normalized.graph.all_nodes()]
    assert operators.count(operator) == 1
    assert not _SPELLED.intersection(operators)

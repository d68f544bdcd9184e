"""Which inputs and outputs are caches: by what is done with them, whatever their names are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize
from onnxopt.graph.precision import caches
from tests.support.graphs import graph, run

_CONSTANTS = (
    "int64[1] m1 = {-1}, int64[1] v0 = {0}, int64[1] v1 = {1}, int64[1] v2 = {2}, int64[1] m4 = {-4}, "
    "int64[1] end = {9223372036854775807}, float two = {2.0}"
)
_P, _X = "float[B, 2, P, 4] p", "float[B, 2, 1, 4] x"
_Q = "float[B, 2, T, 4] q"


@pytest.mark.parametrize(
    ("inputs", "outputs", "body"),
    [
        (f"{_P}, {_X}", _Q, "q = Concat<axis = 2>(p, x)"),
        (f"{_P}, {_X}", _Q, "h = Mul(x, two) c = Concat<axis = 2>(p, h) q = Identity(c)"),
        (f"{_P}, {_X}", _Q, "c = Concat<axis = 2>(p, x) q = Slice(c, m4, end, v2)"),  # a window that moves on
        (f"{_P}, {_X}", _Q, "a = Transpose<perm = [0, 2, 1, 3]>(p) b = Transpose<perm = [0, 2, 1, 3]>(x) "
         "c = Concat<axis = 1>(a, b) q = Transpose<perm = [0, 2, 1, 3]>(c)"),
        (f"{_P}, {_X}, int64[B, 2, 1, 4] i", "float[B, 2, P, 4] q", "q = ScatterElements<axis = 2>(p, i, x)"),
        (f"{_P}, int64[n, 1] i, float[n, 2, P, 4] x", "float[B, 2, P, 4] q", "q = ScatterND(p, i, x)"),
        (f"{_P}, bool[P, 1] m, {_X}", "float[B, 2, P, 4] q", "q = Where(m, x, p)"),
        ("float[2, B, P, 4] p, float[B, 1, 4] x", "float[2, B, T, 4] q",  # keys and values of one tensor
         "k, v = Split<axis = 0, num_outputs = 2>(p) a = Squeeze(k, v0) b = Squeeze(v, v0) c = Concat<axis = 1>(a, x) "
         "d = Concat<axis = 1>(b, x) e = Unsqueeze(c, v0) f = Unsqueeze(d, v0) q = Concat<axis = 0>(e, f)"),
    ],
)  # fmt: skip
def test_found(inputs: str, outputs: str, body: str) -> None:
    model = normalize.normalize(graph(inputs, outputs, body, constants=_CONSTANTS)).model
    assert caches.find(model) == ("p", "q")


@pytest.mark.parametrize(
    ("inputs", "outputs", "body"),
    [
        (f"{_P}, {_X}", _Q, "h = Mul(p, two) q = Concat<axis = 2>(h, x)"),  # computed with
        (f"{_P}, {_X}", "float[B, 2, P, 4] q, float[B, 2, 1, 4] r", "q = Identity(p) r = Identity(x)"),  # nothing added
        ("float[P, 4] p, float[1, 4] x", "float[T, 4] q", "q = Concat<axis = 0>(p, x)"),  # two dims
        ("float[2, 3, 4] p, float[2, 3, 4] x", "float[4, 3, 8] q",
         "a = Concat<axis = 0>(p, x) q = Concat<axis = 2>(a, a)"),  # other sizes
        ("float16[B, 2, P, 4] p, float16[B, 2, 1, 4] x", "float16[B, 2, T, 4] q", "q = Concat<axis = 2>(p, x)"),
    ],
)  # fmt: skip
def test_not_found(inputs: str, outputs: str, body: str) -> None:
    assert caches.find(normalize.normalize(graph(inputs, outputs, body, constants=_CONSTANTS)).model) == ()


def test_of_onnx_runtimes_attention() -> None:
    body = "y, k, v = com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x, , , , p, r)"
    model = graph(
        "float[B, 1, 8] x, float[B, 2, P, 4] p, float[B, 2, P, 4] r",
        "float[B, 1, 8] y, float[B, 2, T, 4] k, float[B, 2, T, 4] v",
        body,
        contrib=True,
    )
    assert caches.find(model) == ("p", "r", "k", "v")


def test_casts_beside_the_model() -> None:
    model = graph(f"{_P}, {_X}", f"{_Q}, {_Q.replace('q', 'y')}", "q = Concat<axis = 2>(p, x) y = Mul(q, two)",
                  constants=_CONSTANTS)  # fmt: skip
    narrowed = model.clone()
    caches.narrow(narrowed, caches.find(model), ir.DataType.FLOAT16)
    assert [v.dtype for v in narrowed.graph.inputs] == [ir.DataType.FLOAT16, ir.DataType.FLOAT]
    assert [(v.name, v.dtype) for v in narrowed.graph.outputs] == [("q", ir.DataType.FLOAT16), ("y", ir.DataType.FLOAT)]
    past, new = np.full((1, 2, 3, 4), 0.1, np.float16), np.full((1, 2, 1, 4), 0.3, np.float32)
    q, y = run(narrowed, {"p": past, "x": new})
    np.testing.assert_array_equal(q, np.concatenate([past, new.astype(np.float16)], 2))
    np.testing.assert_array_equal(y, 2 * np.concatenate([past.astype(np.float32), new], 2))


# --- keys and values that one file returns and another reads ---

_K, _V = "float[B, 2, E, 4] k", "float[B, 2, E, 4] v"
_ATTEND = (
    "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) h = Mul(s, two) w = Softmax<axis = -1>(h) y = MatMul(w, v)"
)
_Y = "float[B, 2, 1, 4] y"


def _found(inputs: str, outputs: str, body: str) -> tuple[str, ...]:
    return caches.find(normalize.normalize(graph(inputs, outputs, body, constants=_CONSTANTS)).model)


def test_keys_and_values_of_an_encoder_that_a_step_only_reads() -> None:
    assert _found(f"{_X}, {_K}, {_V}", _Y, _ATTEND) == ("k", "v")
    repeated = _ATTEND.replace("MatMul(w, v)", "MatMul(w, g)")
    repeat = "u = Unsqueeze(v, v2) g = Squeeze(u, v2) "
    assert _found(f"{_X}, {_K}, {_V}", _Y, repeat + repeated) == ("k", "v")
    scaled = "k2 = Mul(k, two) " + _ATTEND.replace("(k)", "(k2)")
    assert _found(f"{_X}, {_K}, {_V}", _Y, scaled) == ("k", "v")


def test_keys_and_values_that_a_first_step_returns() -> None:
    made = "k = Mul(e, two) v = Add(e, two) " + _ATTEND
    outputs = "float[B, 2, 1, 4] y, float[B, 2, E, 4] k, float[B, 2, E, 4] v"
    assert _found(f"{_X}, float[B, 2, E, 4] e", outputs, made) == ("k", "v")


def test_keys_and_values_in_branches() -> None:
    """As optimum merges the steps with and without a cache: one If, whose branches read the inputs from outside."""
    step = "c = Concat<axis = 2>(p, x) " + _ATTEND.replace("(k)", "(c)").replace("MatMul(w, v)", "MatMul(w, c)")
    first = _ATTEND.replace("(k)", "(x)").replace("MatMul(w, v)", "MatMul(w, x)").replace("y =", "z =")
    body = (
        f"y, q = If(now) <then_branch = a () => ({_Y}, float[B, 2, T, 4] c) {{ {step} }}, "
        f"else_branch = b () => (float[B, 2, 1, 4] z, float[B, 2, 1, 4] d) {{ {first} d = Identity(x) }}>"
    )
    assert _found(f"{_X}, {_P}, bool now", f"{_Y}, {_Q}", body) == ("p", "q")
    read = f"y = If(now) <then_branch = a () => ({_Y}) {{ {_ATTEND} }}, else_branch = b () => ({_Y.replace('y', 'o')}) "
    read += "{ o = Identity(x) }>"
    assert _found(f"{_X}, {_K}, {_V}, bool now", _Y, read) == ("k", "v")


@pytest.mark.parametrize(
    ("inputs", "outputs", "body"),
    [
        (f"{_X}, {_K}, {_V}", _Y, "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) y = MatMul(s, v)"),  # linear
        (f"{_X}, {_K}, {_V}", _Y, "z = Mul(k, k) " + _ATTEND.replace("MatMul(w, v)", "MatMul(w, z)")),  # computed with
        ("float[B, 1, 4] x, float[B, E, 4] k", "float[B, 1, 4] y",  # hidden states, which a pool weighs
         "t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(x, t) w = Softmax<axis = -1>(s) y = MatMul(w, k)"),
        (_X, _Y, "w = Softmax<axis = -1>(x) y = Mul(w, two)"),
    ],
)  # fmt: skip
def test_no_keys_and_values(inputs: str, outputs: str, body: str) -> None:
    assert _found(inputs, outputs, body) == ()

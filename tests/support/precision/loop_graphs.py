"""Loops and scans whose steps round what they carry, by class: what 16 bits must not store in a body.

A row has the body's states with their dtypes, what a step computes, and what must be 16 bit, and float32. `s` begins as
`h`, a product of the input; `n` is the number of steps.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from tests.support.graphs import graph

Feeds = dict[str, np.ndarray]
_DRAWN = np.random.default_rng(4).standard_normal
# The gates' v is small: networks that oscillate without an input drift in phase in any precision.
_SQUARES = {name: size * _DRAWN((8, 8)) for name, size in (("w", 0.5), ("u", 0.5), ("v", 0.25), ("z", 0.5))}
_SQUARES["e"] = np.full((8, 8), 0.01)
_VECTORS = {"b": _DRAWN(8), "g": 1 + 0.1 * _DRAWN(8), "freq": np.array([1, 0.5, 0.1, 0.05, 0.01, 5e-3, 1e-3, 1e-4])}
_NUMBERS = {"one": 1, "two": 2, "half": 0.5, "zero": 0, "tenth": 0.1, "ninety": 0.9, "tiny": 1e-4, "small": 1e-3}
_CONSTANTS = ", ".join(
    [f"float[8, 8] {n} = {{{', '.join(map(str, a.ravel()))}}}" for n, a in _SQUARES.items()]
    + [f"float[8] {n} = {{{', '.join(map(str, a))}}}" for n, a in _VECTORS.items()]
    + [f"float {n} = {{{number}}}" for n, number in _NUMBERS.items()]
    + ["int64[1] last = {-1}, int64[1] first = {0}, int64[1] flat = {-1}, int64 i1 = {1}, int64 i0 = {0}"]
    + [
        "int64 six = {6}, int64 i2 = {2}, int64[1] i0_1 = {0}, int64[1] i1_1 = {1}, int64[1] i8_1 = {8}, "
        "float hundred = {100}"
    ]
)


@dataclasses.dataclass(frozen=True)
class Row:
    """states: what is carried beside i and the condition, as input of the body:operand:output of a step, [N, 8] or a
    number. stacked: outputs of all steps. half, single: values that must be 16 bit, and float32.
    """

    step: str
    half: str = ""
    single: str = ""
    states: str = "s:h:a"
    stacked: str = ""
    steps: str = "n"
    condition: str = "co = Identity(ci)"
    long: int = 500


LOOPS = {
    "a recurrent network": Row("p = MatMul(s, w) q = MatMul(h, u) r = Add(p, q) a = Tanh(r)", "p q"),
    "a gated network": Row(
        "p = MatMul(s, w) q = MatMul(h, u) r = Add(p, q) z1 = Sigmoid(r) k = Mul(z1, s) k1 = MatMul(k, v) c = Tanh(k1) "
        "o = Sub(one, z1) l = Mul(z1, s) m = Mul(o, c) a = Add(l, m)",
        "p q k1", "z1 c o m l a",
    ),
    "gates as PyTorch writes them": Row(
        "p = MatMul(s, w) z1 = Sigmoid(p) q = MatMul(s, v) c = Tanh(q) d = Sub(s, c) l = Mul(z1, d) a = Add(c, l)",
        "p q", "z1 c d l a",
    ),
    "long short-term memory": Row(
        "p = MatMul(s, w) f = Sigmoid(p) q = MatMul(s, u) g1 = Tanh(q) r = MatMul(h, v) j = Sigmoid(r) k = Mul(f, t) "
        "l = Mul(j, g1) d = Add(k, l) o = Tanh(d) a = Mul(o, f)",
        "p q r", "f g1 j l k d", "s:h:a t:h:d",
    ),
    "log-probabilities that are added": Row(
        "p = MatMul(h, w) l = LogSoftmax(p) a = Add(s, l) r = MatMul(a, u)", "p", "a r", stacked="r"
    ),
    "scores of a beam": Row(
        "p = MatMul(h, w) l = LogSoftmax(p) c = Add(s, l) a, ix = TopK(c, i8_1) r = Tanh(a) q = MatMul(r, u)", "p q",
        "c a r", stacked="q",
    ),
    "a running sum": Row("p = MatMul(h, w) q = Tanh(p) a = Add(s, q) r = MatMul(a, u)", "p", "q a r", stacked="r"),
    "a mean of all steps": Row(
        "p = MatMul(h, w) k = Mul(s, ninety) l = Mul(p, tenth) a = Add(k, l) r = MatMul(a, u)", "p r", "k l a",
        stacked="r",
    ),
    "an iterative refinement": Row("p = MatMul(s, w) q = Relu(p) r = MatMul(q, e) a = Add(s, r)", "", "p r a", long=60),
    "a refinement of normed values": Row(
        "k = LayerNormalization(s, g, b) p = MatMul(k, w) q = Relu(p) r = MatMul(q, e) a = Add(s, r)", "p r", "a"
    ),
    "an integrator": Row("p = MatMul(h, w) q = Tanh(p) r = Mul(q, tiny) a = Add(s, r)", "p", "a"),
    "a linear recurrence": Row("p = MatMul(s, e) a = Mul(p, two)", "", "p a"),
    "six steps of a refinement": Row("p = MatMul(s, w) q = Relu(p) r = MatMul(q, e) a = Add(s, r)", "p r", "a",
                                     steps="six"),
    "Newton's iteration": Row(
        "m = Abs(h) y1 = Add(m, one) d = Mul(y1, s) e1 = Sub(two, d) k = Mul(s, e1) c = Max(k, tiny) a = Min(c, half)",
        "", "d e1 k a", states="s:start:a",
    ),
    "a counter of floats": Row(
        "a = Add(s, one) f = Mul(a, freq) q = Sin(f) t = MatMul(q, w) r = Add(t, h)", "", "a f q",
        states="s:zero:a", stacked="r", long=5000,
    ),
    "a counter of floats that is multiplied": Row(
        "a = Add(s, one) f = Mul(a, freq) t = MatMul(f, w) k = Tanh(t) q = MatMul(k, w) r = Add(q, h)", "q", "a f t",
        states="s:zero:a", stacked="r", long=5000,
    ),
    "the number of the step": Row(
        "c = Cast<to = 1>(i) f = Mul(c, freq) q = Cos(f) t = MatMul(q, w) k = Add(t, h) a = Tanh(k)", "", "c f q",
        stacked="k", long=5000,
    ),
    "a cache": Row(
        "p = MatMul(h, w) k = Slice(p, i0_1, i1_1, first) a = Concat<axis = 0>(s, k) t = Transpose<perm = [1, 0]>(a) "
        "q = MatMul(k, u) c = MatMul(q, t) m = Softmax(c) o = MatMul(m, a) r = MatMul(o, v)",
        "p q c m o r", "a", stacked="r",
    ),
    "a branch in a loop": Row(
        "d = Mod(i, i2) e1 = Cast<to = 9>(d) r = If(e1) <then_branch = t1 () => (float[N, 8] x1) {x2 = MatMul(s, w) "
        "x1 = Tanh(x2)}, else_branch = t2 () => (float[N, 8] x3) {x4 = MatMul(s, u) x3 = Sigmoid(x4)}> "
        "p = MatMul(r, v) a = Tanh(p)",
        "x2 x4 p",
    ),
    "a loop in a loop": Row(
        "j = Loop(n, , s) <body = l2 (int64 i2x, bool c2, float[N, 8] s2) => (bool c3, float[N, 8] a2) "
        "{c3 = Identity(c2) p2 = MatMul(s2, w) q2 = Tanh(p2) k2 = Mul(q2, small) a2 = Add(s2, k2)}> p = MatMul(j, v) "
        "a = Tanh(p)",
        "", "a2 p", long=40,
    ),
    "until nothing changes": Row(
        "p = MatMul(s, e) q = Mul(p, half) a = Add(q, h) d = Sub(a, s) m = Abs(d) t = ReduceMax<keepdims = 0>(m)",
        "", "p q a d m t", condition="co = Greater(t, tiny)",
    ),
    "until a sum is reached": Row(
        "p = MatMul(h, w) q = Sigmoid(p) a = Add(s, q) t = ReduceMean<keepdims = 0>(a) r = MatMul(h, u)", "r", "p a t",
        condition="co = Less(t, hundred)", stacked="r",
    ),
    "the larger of all steps": Row(
        "p = MatMul(h, w) k = Tanh(p) a = Max(s, k) r = MatMul(a, u)", "p r", "k a", stacked="r"
    ),
    "two states that change places": Row("p = MatMul(h, w) q = Tanh(p) a = Add(t, q) d = Identity(s)", "p", "a",
                                         "s:h:a t:h:d"),
}  # fmt: skip


def model(row: Row) -> ir.Model:
    """The row as a model of x and n, whose outputs are its states and what it stacks."""
    states = [part.split(":") for part in row.states.split()]
    types = ["float" if start == "zero" else "float[A, 8]" for _, start, _ in states]
    inside = ", ".join(f"{kind} {name}" for kind, (name, _, _) in zip(types, states, strict=True))
    outputs = [f"{kind} {after}" for kind, (_, _, after) in zip(types, states, strict=True)]
    outputs += [f"float[A, 8] {name}" for name in row.stacked.split()]
    results = [f"y{k}" for k in range(len(outputs))]
    body = (
        f"h = MatMul(x, z) h0 = Mul(h, zero) start = Add(h0, tenth) {', '.join(results)} = Loop({row.steps}, , "
        f"{', '.join(s for _, s, _ in states)}) <body = l (int64 i, bool ci, {inside}) => "
        f"(bool co, {', '.join(outputs)}) {{{row.step} {row.condition}}}>"
    )
    made = graph("float[N, 8] x, int64 n", ", ".join(f"float[] {r}" for r in results), body, constants=_CONSTANTS)
    for value in made.graph.outputs:
        value.shape = None
    return made


def feeds(steps: int, rows: int = 4) -> Feeds:
    """The input, and the number of steps."""
    return {"x": np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32), "n": np.array(steps)}


SCAN = """
h = MatMul(x, z) c0 = Mul(x0, zero) y0, y1, y2 = Scan<num_scan_inputs = 1, scan_input_directions = [DIRECTION],
scan_input_axes = [1], body = l (float[A, 8] s, float[A, 8] c, float[A, 8] e1) =>
(float[A, 8] o, float[A, 8] d, float[A, 8] r) {
p = MatMul(s, w) q = MatMul(e1, u) k = Add(p, q) f = Sigmoid(k) g1 = Tanh(k) l = Mul(f, c) m = Mul(f, g1) d = Add(l, m)
t = Tanh(d) o = Mul(f, t) r = MatMul(o, v)
}>(c0, c0, h)
"""


def scan(direction: int) -> ir.Model:
    """A network of two states over the second axis of x, whose first elements are x0."""
    body = " ".join(SCAN.split()).replace("DIRECTION", str(direction))
    inputs = "float[N, T, 8] x, float[N, 8] x0"
    return graph(inputs, "float[N, 8] y0, float[N, 8] y1, float[T, N, 8] y2", body, constants=_CONSTANTS)


def scanned(steps: int) -> Feeds:
    """The inputs of a scan."""
    array = np.random.default_rng(0).standard_normal((3, steps, 8)).astype(np.float32)
    return {"x": array, "x0": np.zeros((3, 8), np.float32)}

"""Hostile by how they are written: names, order, interface, useless nodes, sizes and shapes of graphs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.hostile.hostile_building import hostile, model_of, random_feeds, text, value

# --- how graphs are written ------------------------------------------------------------------------------------------


@hostile
def initializers_that_are_inputs():
    weights = {"w": np.float32([[2.0]]), "shape": np.int64([-1, 2]), "one": np.float32(1.0)}
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["y"]),
        helper.make_node("Exp", ["w"], ["z"]),
    ]
    inputs = [value("x", [2, 2]), value("w", [1, 1]), value("shape", [2], TensorProto.INT64), value("one", [])]
    model = model_of(nodes, inputs, [value("y", ["A", "B"]), value("z", [1, 1])], weights)
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    override = {"w": np.float32([[-1.0]]), "shape": np.int64([4, 1]), "one": np.array(3.0, np.float32)}
    return model, [{"x": x}, {"x": x, **override}]


@hostile
def ir_version_3_weights_among_inputs():
    weights = {"w": np.float32([[2.0, 3.0]]), "b": np.float32([1.0, 0.0])}
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    inputs = [value("x", ["N", 2]), value("w", [1, 2]), value("b", [2])]
    model = model_of(nodes, inputs, [value("y", ["N", 2])], weights, opset=8, ir_version=3)
    return model, random_feeds(model)


@hostile
def not_topologically_ordered():
    nodes = [
        helper.make_node("Add", ["c", "b"], ["y"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Tanh", ["x"], ["b"]),
    ]
    model = model_of(nodes, [value("x", ["N", "M"])], [value("y", ["N", "M"])])
    return model, random_feeds(model)


@hostile
def wrong_declared_shapes():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
        helper.make_node("Mul", ["c", "a"], ["y"]),
    ]
    model = model_of(nodes, [value("x", ["N", "M"])], [value("y", ["M", 7])])
    model.graph.value_info.append(value("b", ["N", "M"]))
    return model, random_feeds(model, {"N": 2, "M": 3}, {"N": 7, "M": 1})


@hostile
def shared_weights():
    random = np.random.default_rng(3)
    weights = {"w": random.standard_normal((64, 64), dtype=np.float32), "b": np.ones(64, np.float32)}
    weights["b2"] = weights["b"].copy()
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["e"]),
        helper.make_node("Add", ["e", "b2"], ["f"]),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    model = model_of(nodes, [value("x", ["N", 64])], [value("y", ["N", 64])], weights)
    return model, random_feeds(model)


@hostile
def output_that_is_an_input():
    return text("g (float[N,M] x) => (float[N,M] x, float[N,M] y) { y = Exp(x) }")


@hostile
def output_that_is_an_initializer():
    return text("g (float[N,M] x) => (float[N,M] y, float[2] w) <float[2] w = {1, 2}> { y = Exp(x) }")


@hostile
def output_that_is_constant():
    return text("""
        g (float[N,M] x) => (float[N,M] y, float k2, float[2] k) {
            k = Constant <value_floats = [1.0, 2.0]> ()  i = Constant <value_int = 1> ()
            k1 = Gather <axis = 0> (k, i)  k2 = Exp(k1)  y = Mul(x, k2)
        }""")


@hostile
def output_that_is_read():
    return text("""
        g (float[N,M] x) => (float[N,M] b, float[N,M] y) {
            a = Exp(x)  b = Tanh(a)  c = Mul(b, a)  y = Neg(c)
        }""")


@hostile
def equal_outputs():
    return text("""
        g (float[N,M] x) => (float[N,M] y, float[N,M] z, float[N,M] u, float[N,M] v) {
            y = Exp(x)  z = Exp(x)  u = Identity(z)  v = Identity(x)
        }""")


@hostile
def output_listed_twice():
    model, feeds = text("g (float[N,M] x) => (float[N,M] y) { a = Exp(x)  y = Neg(a) }")
    model.graph.output.append(model.graph.output[0])
    return model, feeds


@hostile
def constant_strings_from_numbers():
    return text(
        """
        g (float[N,M] x, string[2] s) => (float[N,M] y, bool[2] e) {
            k = Constant <value_ints = [3, 4]> ()  t = Cast <to = 8> (k)  e = Equal(s, t)  y = Exp(x)
        }""",
        opset=19,
        ir_version=9,
    )


@hostile
def names_that_look_made_up():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("If", ["c"], ["a_1"], then_branch=_branch("Neg"), else_branch=_branch("Abs")),
        helper.make_node("Add", ["a", "a_1"], ["a_2"], name="Exp_1"),
        helper.make_node("Exp", ["a_2"], ["y"]),
    ]
    model = model_of(nodes, [value("x", ["N"]), value("c", [], TensorProto.BOOL)], [value("y", ["N"])])
    return model, random_feeds(model)


def _branch(op_type: str) -> onnx.GraphProto:
    weights = [numpy_helper.from_array(np.float32([i]), name) for i, name in enumerate(("w", "w_1"))]
    nodes = [
        helper.make_node(op_type, ["x"], ["v"]),
        helper.make_node("Mul", ["v", "w_1"], ["v_1"]),
        helper.make_node("Add", ["v_1", "w"], ["o"]),
    ]
    return helper.make_graph(nodes, op_type, [], [value("o", None)], weights)


@hostile
def unnamed_nodes():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"], name="Exp"),
        helper.make_node("Mul", ["a", "b"], ["Mul"]),
        helper.make_node("Mul", ["Mul", "x"], ["y"], name="Mul"),
    ]
    model = model_of(nodes, [value("x", ["N", "M"])], [value("y", ["N", "M"])])
    return model, random_feeds(model)


@hostile
def omitted_inputs_and_outputs():
    return text("""
        g (float[N,M] x) => (float[N,M] y, float[N,M] z) <float hi = {1.5}, float[1] one = {1}> {
            a = Clip(x, , hi)  y, mask = Dropout(a)
            b, unused_mean = LayerNormalization <axis = -1> (x, one)  z = Mul(b, a)
        }""")


# --- sizes and shapes of graphs --------------------------------------------------------------------------------------


@hostile
def chain_of_500():
    operators = ["Tanh", "Sin", "Neg", "Abs", "Sigmoid"]
    names = ["x", *(f"v{i}" for i in range(499)), "y"]
    nodes = [helper.make_node(operators[i % 5], [names[i]], [names[i + 1]]) for i in range(500)]
    model = model_of(nodes, [value("x", ["N", "M"])], [value("y", ["N", "M"])])
    return model, random_feeds(model)


@hostile
def diamonds():
    lines, previous = [], "x"
    for i in range(8):
        lines.append(f"l{i} = Tanh({previous})  r{i} = Sigmoid({previous})  m{i} = Mul(l{i}, r{i})")
        previous = f"m{i}"
    return text("g (float[N,M] x) => (float[N,M] y) {" + "\n".join(lines) + f" y = Add({previous}, l3) }}")


@hostile
def cycle_if_fused_greedily():
    return text(
        """
        g (float[N,N] x) => (float[N,N] y) {
            a = Exp(x)  b = MatMul(a, x)  c = Tanh(b)  d = Mul(a, c)  e = MatMul(d, c)  f = Add(e, a)  y = Mul(f, d)
        }""",
        {"N": 3},
        {"N": 8},
    )


@hostile
def broadcast_mixes():
    return text("""
        g (float[N,M,5] x, float[M,1] r, float[5] c, float s, float[1,1,1,5] q) => (float[1,N,M,5] y, float[M,5] z) {
            q2 = Constant <value_float = 4.0> ()
            a = Mul(x, r)  b = Add(a, c)  d = Sub(b, s)  e = Div(d, q2)  y = Mul(e, q)
            g1 = Add(r, c)  z = Tanh(g1)
        }""")


@hostile
def near_neutral_constants():
    return text("""
        g (float[N,M] x, int64[N] i) => (float[N,M] y, float[N,M] z, int64[N] j, float[1,N,M] w) <
            float tiny = {1e-9}, float almost = {1.000005}, float one = {1}, int64 zero = {0}, float[1,1,1] ones = {1},
            float million = {1e6}
        > {
            a = Sub(x, x)  b = Add(a, tiny)  y = Log(b)
            c = Mul(x, almost)  d = Sub(c, x)  f = Mul(d, million)  z = Mul(f, one)
            j = Add(i, zero)  w = Mul(x, ones)
        }""")


@hostile
def no_op_data_movement():
    return text("""
        g (float[N,M] x, float[2,3] k) => (float[N,M] y, float[2,3] z) {
            sh = Shape(x)  a = Reshape(x, sh)  b = Expand(a, sh)
            p = Transpose <perm = [1, 0]> (b)  q = Transpose <perm = [1, 0]> (p)  y = Concat <axis = 0> (q)
            zero = Constant <value_ints = [0]> ()  big = Constant <value_ints = [9223372036854775807]> ()
            d = Slice(k, zero, big, zero)  same = Constant <value_ints = [0, -1]> ()
            e = Reshape(d, same)  f = Cast <to = 1> (e)  z = Exp(f)
        }""")


@hostile
def random_nodes_must_not_merge():
    return text("""
        g (float[N,M] x) => (float[N,M] y, float[N,M] z) {
            zero = Constant <value_float = 0.0> ()
            a = RandomUniformLike <seed = 3.0> (x)  b = RandomUniformLike <seed = 4.0> (x)
            c = Mul(a, zero)  d = Mul(b, zero)  y = Add(c, x)  z = Sub(d, x)
        }""")


@hostile
def reversed_slice_of_the_same_shape():
    return text("""
        g (float[4,M] x) => (float[4,M] y) {
            b = Constant <value_ints = [3]> ()  e = Constant <value_ints = [-5]> ()
            s = Constant <value_ints = [-1]> ()  zero = Constant <value_ints = [0]> ()
            r = Slice(x, b, e, zero, s)  y = Exp(r)
        }""")

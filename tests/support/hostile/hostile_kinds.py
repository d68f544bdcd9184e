"""Hostile by what they contain: control flow, domains and functions, dtypes, kinds of values, shapes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.support.hostile.hostile_building import hostile, model_of, random_feeds, text, value

# --- control flow ----------------------------------------------------------------------------------------------------


@hostile
def if_with_captured_values():
    return text("""
        g (float[N,M] x, bool c) => (float[N,M] y) {
            a = Tanh(x)
            b = Mul(a, x)
            r = If (c) <
                then_branch = t () => (float[N,M] o) { p = Sigmoid(b)  q = Mul(p, x)  o = Add(q, a) },
                else_branch = e () => (float[N,M] o) { p = Neg(b)  o = Exp(p) }
            >
            s = Add(r, b)
            y = Tanh(s)
        }""")


@hostile
def if_branch_returns_captured_value():
    return text("""
        g (float[N,M] x, bool c) => (float[N,M] y) {
            a = Tanh(x)
            y = If (c) <
                then_branch = t () => (float[N,M] o) { o = Identity(a) },
                else_branch = e () => (float[N,M] o) { o = Identity(x) }
            >
        }""")


@hostile
def if_on_constant_condition():
    return text("""
        g (float[N,M] x) => (float[N,M] y, float[N,M] z) {
            c = Constant <value = bool {1}> ()
            y, z = If (c) <
                then_branch = t () => (float[N,M] o, float[N,M] u) {
                    k = Constant <value_float = 2.0> ()  o = Mul(x, k)  h = Add(o, k)  u = Exp(h) },
                else_branch = e () => (float[N,M] o, float[N,M] u) { o = Neg(x)  u = Identity(o) }
            >
        }""")


@hostile
def if_on_constant_condition_returning_weights():
    return text("""
        g (float[N,M] x) => (float[N,M] y, float[1] w, float[N,M] v) <bool c = {0}> {
            a = Exp(x)
            w, u = If (c) <
                then_branch = t () => (float[1] o, float[N,M] p) <float[1] o = {1}> { p = Neg(x) },
                else_branch = e () => (float[1] o, float[N,M] p) <float[1] o = {2}> { p = Identity(a) }
            >
            v = Identity(u)  y = Mul(a, w)
        }""")


@hostile
def if_inside_constant_if():
    return text("""
        g (float[N,M] x, bool d) => (float[N,M] y) <bool c = {1}> {
            v = Exp(x)
            r = If (c) <
                then_branch = t () => (float[N,M] o) {
                    v1 = Sin(v)
                    o = If (d) <
                        then_branch = t () => (float[N,M] q) { r1 = Cos(v1)  q = Mul(r1, v) },
                        else_branch = e () => (float[N,M] q) { r1 = Neg(v1)  q = Abs(r1) }
                    > },
                else_branch = e () => (float[N,M] o) { o = Identity(x) }
            >
            y = Add(r, v)
        }""")


@hostile
def loop_that_carries_constants():
    return text("""
        g (float[N,M] x) => (float[N,M] y, int64 k) <int64 trips = {3}, bool go = {1}, int64 zero = {0}> {
            y, k = Loop (trips, go, x, zero) <
                body = b (int64 i, bool keep, float[N,M] s, int64 j) => (bool more, float[N,M] t, int64 l) {
                    more = Constant <value = bool {1}> ()  one = Constant <value_int = 1> ()
                    l = Add(j, one)  f = Cast <to = 1> (l)  h = Mul(s, f)  t = Tanh(h)
                }
            >
        }""")


@hostile
def if_nested_with_same_names():
    return text("""
        g (float[N,M] x, bool c, bool d) => (float[N,M] y) {
            y = If (c) <
                then_branch = t () => (float[N,M] o) {
                    o = If (d) <
                        then_branch = t () => (float[N,M] o1) { v = Sin(x)  o1 = Cos(v) },
                        else_branch = e () => (float[N,M] o2) { v = Cos(x)  o2 = Mul(v, v) }
                    > },
                else_branch = e () => (float[N,M] o) { v = Abs(x)  o = Sqrt(v) }
            >
        }""")


@hostile
def loop_with_chain_and_growing_shape():
    return text("""
        g (float[N,M] x, int64 n) => (float[R,M] y, float[S,N,M] scans) {
            t = Constant <value = bool {1}> ()
            b = Sigmoid(x)
            y, scans = Loop (n, t, x) <
                body = b (int64 i, bool keep, float[N,M] carried) => (bool more, float[R,M] next, float[N,M] scan) {
                    more = Identity(keep)
                    u = Exp(b)  v = Mul(u, x)  scan = Tanh(v)
                    next = Concat <axis = 0> (carried, scan)
                }
            >
        }""")


@hostile
def scan_with_captured_weight():
    return text("""
        g (float[N,M] x, float[M] h0) => (float[M] h, float[N,M] ys) <float k = {0.5}> {
            w = Mul(k, k)
            h, ys = Scan <num_scan_inputs = 1, body = b (float[M] s, float[M] e) => (float[M] so, float[M] yo) {
                p = Mul(e, w)  q = Add(p, s)  so = Tanh(q)  yo = Sub(so, k)
            }> (h0, x)
        }""")


# --- domains and functions -------------------------------------------------------------------------------------------


@hostile
def microsoft_domain():
    return text(
        """
        g (float[N,M] x) => (float[N,M] y) {
            a = Mul(x, x)  b = com.microsoft.Gelu(a)  c = Add(b, x)  d = com.microsoft.QuickGelu <alpha = 1.5> (c)
            y = Neg(d)
        }""",
        domains=', "com.microsoft" : 1',
    )


@hostile
def nested_functions_with_attributes():
    return text(
        """
        g (float[N,M] x) => (float[N,M] y, float[N,M] z) {
            y = pkg.custom.outer <scale = 2.0> (x)
            z = pkg.custom.outer (y)
        }
        <domain: "pkg.custom", opset_import: ["" : 17]>
        inner <alpha> (a, b) => (r) { s = LeakyRelu <alpha: float = @alpha> (a)  r = Add(s, b) }
        <domain: "pkg.custom", opset_import: ["" : 17, "pkg.custom" : 1]>
        outer <scale: float = 0.5> (a) => (r) {
            k = Constant <value_float: float = @scale> ()
            m = Mul(a, k)
            r = pkg.custom.inner <alpha: float = @scale> (m, a)
        }""",
        domains=', "pkg.custom" : 1',
    )


@hostile
def function_returning_its_input():
    return text(
        """
        g (float[N,M] x) => (float[N,M] y, float[N,M] z) { y, u = pkg.f (x)  z = Add(u, y) }
        <domain: "pkg", opset_import: ["" : 17]>
        f (a) => (a2, b) { a2 = Identity(a)  b = Exp(a) }""",
        domains=', "pkg" : 1',
    )


@hostile
def function_of_another_opset():
    return text(
        """
        g (float[N,M] x) => (float[N,M] y) { t = Tanh(x)  y = pkg.f (t) }
        <domain: "pkg", opset_import: ["" : 13]>
        f (a) => (b) { e = Exp(a)  b = Mul(e, a) }""",
        opset=18,
        domains=', "pkg" : 1',
    )


# --- shapes, dtypes, kinds of values ---------------------------------------------------------------------------------


@hostile
def zero_dim_tensors():
    return text("""
        g (float x, float[N,M] v) => (float y, float[N,M] z) {
            s = Constant <value_ints = [1, 1]> ()
            a = Mul(x, x)  y = Tanh(a)  b = Add(v, y)  c = Reshape(x, s)  z = Mul(b, c)
        }""")


@hostile
def empty_tensors():
    model, feeds = text("""
        g (float[N,0] x, float[N,M] v) => (float[N,0] y, float[N,M] z) {
            a = Exp(x)  y = Neg(a)  b = Concat <axis = 1> (y, v)  c = Tanh(b)  z = Mul(c, v)
        }""")
    return model, [*feeds, *random_feeds(model, {"N": 0, "M": 3})]


@hostile
def no_fusible_node():
    return text("g (float[N,M] x) => (float[M,N] y) { y = Transpose <perm = [1, 0]> (x) }")


@hostile
def no_node_at_all():
    return text("g (float[N,M] x) => (float[N,M] x) { }")


@hostile
def strings():
    return text(
        """
        g (string[N] s, string[N] t) => (bool[N] y, string[N] u, string[2] k) {
            a = Equal(s, t)  y = Not(a)  u = Where(y, s, t)
            k = Constant <value_strings = ["left", "right"]> ()
        }""",
        opset=19,
        ir_version=9,
    )


@hostile
def sequences():
    return text("""
        g (float[N,M] x) => (float[K,M] y, seq(float[N,M]) s) {
            a = Tanh(x)  b = Mul(a, a)  s = SequenceConstruct(a, b, x)
            i = Constant <value_int = 1> ()
            e = SequenceAt(s, i)  f = SequenceInsert(s, e)  y = ConcatFromSequence <axis = 0> (f)
        }""")


@hostile
def optionals():
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", "M"])
    optional = helper.make_node("Optional", ["a"], ["o"])
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        optional,
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
        helper.make_node("OptionalGetElement", ["o"], ["e"]),
        helper.make_node("Exp", ["e"], ["y"]),
        helper.make_node("Optional", [], ["none"], type=tensor),
        helper.make_node("OptionalHasElement", ["none"], ["g"]),
    ]
    outputs = [value("y", ["N", "M"]), value("h", [], TensorProto.BOOL), value("g", [], TensorProto.BOOL)]
    model = model_of(nodes, [value("x", ["N", "M"])], outputs, opset=18)
    return model, random_feeds(model)


@hostile
def sparse_initializer():
    values = numpy_helper.from_array(np.array([1.5, -2.0, 3.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 4, 11], np.int64), "w_indices")
    model = model_of(
        [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "c"], ["y"])],
        [value("x", ["N", 4])],
        [value("y", [3, 4])],
    )
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    two_d = numpy_helper.from_array(np.array([[0, 1], [2, 3]], np.int64))
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "c"), two_d, [3, 4])
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    return model, random_feeds(model, {"N": 3}, {"N": 1})


@hostile
def half_and_bfloat_casts():
    return text("""
        g (float16[N,M] x, float[N,M] f) => (float16[N,M] y, float[N,M] z) {
            a = Cast <to = 1> (x)  c = Mul(a, f)  d = Cast <to = 10> (c)  e = Add(d, x)  y = Tanh(e)
            b = Cast <to = 16> (f)  h = Cast <to = 1> (b)  i = Cast <to = 10> (h)  j = Cast <to = 1> (i)  z = Sub(j, f)
        }""")


@hostile
def mixed_dtypes():
    return text("""
        g (int32[N,M] i, int64[M] l, bool[N,1] m, double[N,M] d, uint8[N,M] u)
        => (double[N,M] y, bool[N,M] p, int8[N,M] s) {
            l2 = Constant <value_int = 3> ()
            a = Cast <to = 7> (i)  b = Add(a, l)  c = Mod(b, l2)  e = Cast <to = 11> (c)  f = Mul(e, d)
            y = Where(m, f, d)  g1 = Less(y, d)  p = And(g1, m)
            v = BitShift <direction = "LEFT"> (u, u)  w = Cast <to = 3> (p)  r = Cast <to = 3> (v)  s = Add(w, r)
        }""")

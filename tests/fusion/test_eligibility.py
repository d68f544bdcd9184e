"""Which elementwise nodes no kernel should run, each with its reason."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxopt.fusion import eligibility
from onnxopt.graph.shapes import shapes as shape_inference
from tests.support.graphs import graph, node

F = "float[N, 4] x"
HOST = "computes a shape or an index"
NOTHING_KNOWN = shape_inference.infer(graph(F, "float[N, 4] y", "y = Neg(x)"))  # of another model


def _why_not(inputs: str, body: str, name: str, *, constants: str = "", opset: int = 20) -> str | None:
    model = graph(inputs, "float[N, 4] y", body, constants=constants, opset=opset, contrib=True)
    shapes = shape_inference.infer(model)
    host = eligibility.host_values(model.graphs(), shapes)
    return eligibility.why_not(node(model, name), model.opset_imports, shapes, host)


@pytest.mark.parametrize(
    ("inputs", "body", "constants"),
    [
        (F, "y = Tanh(x)", ""),
        (F, "y = Add(x, c)", "float c = {1}"),
        (F, "y = Clip(x, , c)", "float c = {1}"),
        (
            F,
            "s = Size(x) t = Cast<to = 1>(s) e = Add(t, c) i = Cast<to = 7>(e) r = Range(o, i, o) y = Mul(x, c)",
            "float c = {0.5}, int64 o = {1}",
        ),  # the host reads the constant too
        (F, "y = Clip(x)", ""),
        (F + ", bool[N, 4] b", "y = Where(b, x, x)", ""),
        (F + ", int64[N, 4] e", "y = Pow(x, e)", ""),
        (F, "y = Cast<to = 10>(x)", ""),
        (F, "y = Mod<fmod = 1>(x, x)", ""),
        ("int64[N, 4] x", "y = Mod(x, x)", ""),
        (F, "y = com.microsoft.QuickGelu<alpha = 1.0>(x)", ""),
        (F, "y = Sum(x, x, x)", ""),
        ("float[] x", "y = Tanh(x)", ""),  # a shape not known at all
        ("int64[N, 4] x", "y = Add(x, x)", ""),  # integers, but no shape arithmetic
    ],
)
def test_fit(inputs: str, body: str, constants: str) -> None:
    assert _why_not(inputs, body, "y", constants=constants) is None


@pytest.mark.parametrize(
    ("inputs", "body", "name", "reason"),
    [
        (F, "s = Shape(x)  n = Add(s, s)  y = Reshape(x, n)", "n", HOST),
        (F, "s = Shape(x)  g = Gather(s, i)  n = Mul(g, i)  k = Unsqueeze(n, z)  y = Reshape(x, k)", "n", HOST),
        (F + ", int64[2] s", "n = Add(s, s)  y = Reshape(x, n)", "n", HOST),  # an input, and only Reshape reads it
        (F + ", int64 k", "n = Add(k, k)  m = Mul(n, n)  r = Range(i, m, i)  y = Gather(x, r)", "n", HOST),
        (F, "s = Size(x)  y = Cast<to = 1>(s)", "y", HOST),
        ("string[N, 4] x", "y = Equal(x, x)", "y", "`x` has dtype string, which kernels cannot store"),
        (F, "u = Unknown(x)  y = Neg(u)", "y", "The dtype of `u` is unknown"),
        ("bool[N, 4] x", "y = Neg(x)", "y", "The operator table has no Neg of bool (`x`)"),
        (F, "y = Mod(x, x)", "y", "The operator table has no Mod of float32 with these attributes (`x`)"),
        (F, "y = Where(x, x, x)", "y", "The operator table has no Where of float32 (`x`)"),
        (F + ", bool[N, 4] b", "y = Pow(x, b)", "y", "The operator table has no Pow of bool (`b`)"),
        (F, "w = com.microsoft.Less(x, x)  y = Neg(w)", "y", "The dtype of `w` is unknown"),
        ("uint8[N, 4] x", "y = Relu(x)", "y", "The operator table has no Relu of uint8 (`x`)"),
        ("int32[N, 4] x", "y = Sqrt(x)", "y", "The operator table has no Sqrt of int32 (`x`)"),
        (F, "y = Add(c, c)", "y", "All inputs of Add are constants"),
        (F, "y = Add(c, d)", "y", "All inputs of Add are constants"),
        (F, "y = QuantizeLinear<axis = 0>(x, d, z8)", "y", "`d` has a value for each position of axis 0"),
        (F, "y = QuantizeLinear(x, e, z8)", "y", "`e` has a value for each position of axis 1"),
        (F, "y = QuantizeLinear<output_dtype = 2, block_size = 2>(x, e)", "y", "with these attributes"),
        (F, "y = QuantizeLinear(x, c, h)", "y", "`h` has dtype float8e5m2, which kernels cannot store"),
        ("int4[N, 4] x", "y = DequantizeLinear(x, c)", "y", "`x` has dtype int4, which kernels cannot store"),
        ("uint8[N, 4] x", "y = DequantizeLinear(q, c, q)", "y", "All inputs of DequantizeLinear are constants"),
    ],
)
def test_unfit(inputs: str, body: str, name: str, reason: str) -> None:
    constants = (
        "float c = {1}, float[2] d = {1, 2}, float[1, 4] e = {1, 2, 3, 4}, uint8 q = {0}, uint8[2] z8 = {0, 0}, "
        "float8e5m2 h = {0}, int64 i = {1}, int64[1] z = {0}"
    )
    assert reason in (_why_not(inputs, body, name, constants=constants) or "")


_DQ = "a = DequantizeLinear(u, c, q)  b = DequantizeLinear(u, c, q)  "
_INTEGER = [  # body, nodes that the CPU provider runs or replaces by integer kernels, nodes that it leaves
    (_DQ + "s = Add(a, b)  y = QuantizeLinear(s, c, q)", "a b s y", ""),
    (_DQ + "s = Add(a, b)  y = Relu(s)", "a b", "s y"),
    (_DQ + "s = Concat<axis = 0>(a, b)  y = QuantizeLinear(s, c, q)", "a b s y", ""),
    ("a = DequantizeLinear(u, c, q)  s = Sigmoid(a)  y = QuantizeLinear(s, c, q)", "a s y", ""),
    ("a = DequantizeLinear(u, c, q)  s = Tanh(a)  y = QuantizeLinear(s, c, q)", "a y", "s"),
    ("a = DequantizeLinear(u, c, q)  s = Transpose(a)  y = QuantizeLinear(s, c, q)", "a s y", ""),
    ("a = DequantizeLinear(u, c, q)  s = Transpose(a)  y = Relu(s)", "a", "s y"),
    ("a = DequantizeLinear(u, c, q)  s = Sigmoid(a)  r = QuantizeLinear(s, c, q)  y = Relu(s)", "a r", "s y"),
    ("p = MatMulInteger(u, u)  f = Cast<to = 1>(p)  m = Mul(f, c)  y = Relu(m)", "f m", "y"),
    ("t = Mul(c, v)  p = MatMulInteger(u, u)  f = Cast<to = 1>(p)  m = Mul(f, t)  b = Add(m, c)  y = Relu(b)",
     "t f m b", "y"),
    ("a = DequantizeLinear(u, c, q)  n = IsNaN(a)  s = Where(n, c, a)  y = QuantizeLinear(s, c, q)", "a s y", "n"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "taken", "left"), _INTEGER)
def test_the_cpu_provider_keeps_what_it_quantizes_where_nothing_runs_on_a_gpu(body: str, taken: str, left: str) -> None:
    model = graph("uint8[4, 4] u, float v", "float[4, 4] y", body, constants="float c = {0.5}, uint8 q = {3}")
    shapes = shape_inference.infer(model)
    for name in (*taken.split(), *left.split()):
        one = node(model, name)
        assert eligibility.why_not(one, model.opset_imports, shapes, set()) is None
        reason = eligibility.why_not(one, model.opset_imports, shapes, set(), cuda=False)
        assert (reason is not None) == (name in taken.split()), (name, reason)
        assert reason is None or "ONNX Runtime's CPU provider" in reason


def test_opset_too_old() -> None:
    assert _why_not(F, "y = Clip(x)", "y", opset=6) == "Clip can be fused from opset 11 on; the model uses opset 6"
    assert _why_not(F, "y = Clip(x)", "y", opset=11) is None


def test_domain_not_imported() -> None:
    node = ir.Node("", "Tanh", [ir.Value(name="x")])
    reason = eligibility.why_not(node, {"other": 3}, NOTHING_KNOWN, set())
    assert reason == "Tanh can be fused from opset 6 on; the model imports none of its domain"


@pytest.mark.parametrize(
    ("op_type", "operands", "outputs", "reason"),
    [
        ("Add", "xxx", 1, "The operator table has no Add with 3 inputs and 1 outputs"),
        ("Add", "x", 1, "Add with 1 inputs"),
        ("Tanh", "", 1, "Tanh with 0 inputs"),
        ("Tanh", "x", 2, "Tanh with 1 inputs and 2 outputs"),
        ("Clip", "-", 1, "Clip with 1 inputs"),
        ("Clip", "-x", 1, "Clip leaves out an input that the operator table requires"),
        ("Where", "x-x", 1, "Where leaves out an input that the operator table requires"),
    ],
)
def test_wrong_arity(op_type: str, operands: str, outputs: int, reason: str) -> None:
    x = ir.Value(name="x")
    node = ir.Node("", op_type, [x if o == "x" else None for o in operands], num_outputs=outputs)
    assert reason in (eligibility.why_not(node, {"": 20}, NOTHING_KNOWN, set()) or "")


def test_an_initializer_that_is_also_an_input_is_no_constant() -> None:
    """Somebody may feed another value, so it is neither folded into code nor a reason to leave the node alone."""
    model = graph(F + ", float c", "float[N, 4] y", "y = Add(x, c)  z = Add(c, c)")
    fed = node(model, "y").inputs[1]
    fed.const_value = ir.tensor(1.0)
    model.graph.initializers["c"] = fed
    shapes = shape_inference.infer(model)
    assert eligibility.constant(fed) is None
    assert eligibility.why_not(node(model, "y"), model.opset_imports, shapes, set()) is None


def test_large_operands_of_a_reshape_are_not_on_the_host() -> None:
    """Range's limit is; what is made of the many indices it gives is ordinary data."""
    body = "r = Range(i, k, i)  n = Mul(r, r)  y = Gather(x, n)"
    assert _why_not(F + ", int64 k", body, "n", constants="int64 i = {1}") is None


@pytest.mark.parametrize(("op", "known"), [("Tanh", True), ("MatMul", False), ("Dropout", False)])
def test_is_elementwise(op: str, known: bool) -> None:
    model = graph(F, "float[N, 4] y", f"y = {op}(x)")
    assert eligibility.is_elementwise(node(model, "y")) is known

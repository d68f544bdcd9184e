"""Lowering: what nodes become, spelled out."""

from __future__ import annotations

import pytest

from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.kinds.pointwise.lower import lower
from onnxopt.program.pointwise import Program
from tests.support.graphs import graph, spelled


def _lowered(inputs: str, outputs: str, body: str, constants: str = "") -> Program:
    model = graph(inputs, outputs, body, constants=constants)
    for output in model.graph.outputs:
        output.type = output.shape = None  # as inferred
    shapes = shape_inference.infer(model)
    return lower(list(model.graph), model.graph.inputs, model.graph.outputs, model.opset_imports, shapes)


F32, F16, I32 = "float[N] x", "float16[N] x", "int32[N] x"


@pytest.mark.parametrize(
    ("inputs", "constants", "body", "expected"),
    [
        (F32, "float c = {0.1}", "y = Add(x, c)", "add(x0, 0.1f)"),
        (F32, "float c = {2}", "y = Sub(c, x)", "sub(2.0f, x0)"),
        (F32, "float c = {4}", "y = Div(x, c)", "mul(x0, 0.25f)"),
        (F32, "float c = {3}", "y = Div(x, c)", "div(x0, 3.0f)"),
        (F16, "float16 c = {16896}", "y = Div(x, c)", "mul(x0, 0.33333334f)"),  # 3 in bits
        (F32, "", "y = Identity(x)", "x0"),
        # Clip with bounds left out: the finite numbers of the dtype
        (F32, "", "y = Clip(x)", "min(max(x0, -3.4028235e+38f), 3.4028235e+38f)"),
        (F32, "float c = {6}", "y = Clip(x, , c)", "min(max(x0, -3.4028235e+38f), 6.0f)"),
        (F32, "float c = {6}", "y = Clip(x, c)", "min(max(x0, 6.0f), 3.4028235e+38f)"),
        (F16, "float16 c = {17920}", "y = Clip(x, c)", "min(max(x0, 6.0f), 65504.0f)"),  # 6 in bits
        (I32, "int32 c = {6}", "y = Clip(x, c)", "max(x0, int32_t(6))"),
        (F32, "float c = {6}, float d = {0}", "y = Clip(x, d, c)", "min(max(x0, 0.0f), 6.0f)"),
        # powers
        (F32, "float c = {1}", "y = Pow(x, c)", "x0"),
        (F32, "float c = {2}", "y = Pow(x, c)", "mul(x0, x0)"),
        (F32, "int64 c = {3}", "y = Pow(x, c)", "mul(x0, mul(x0, x0))"),
        (F32, "float c = {4}", "y = Pow(x, c)", "mul(mul(x0, x0), mul(x0, x0))"),
        (F32, "float c = {-1}", "y = Pow(x, c)", "div(1.0f, x0)"),
        (F32, "float c = {0.5}", "y = Pow(x, c)", "pow(x0, 0.5f)"),
        (F32, "int64 c = {5}", "y = Pow(x, c)", "pow(x0, 5.0f)"),
        (I32, "int32 c = {-1}", "y = Pow(x, c)", "pow(x0, int32_t(-1))"),
        (I32, "float c = {0.5}", "y = Pow(x, c)",
         "cast<int32>(pow(cast<float64>(x0), cast<float64>(0.5f)))"),  # the exponent is not cut off
        # casts
        (F32, "", "y = Cast<to = 7>(x)", "cast<int64>(x0)"),
        (F32, "", "y = Cast<to = 10>(x)", "narrow<float16>(x0)"),
        (F32, "", "y = Cast<to = 9>(x)", "cast<bool>(x0)"),
        (F16, "", "y = Cast<to = 1>(x)", "x0"),
        (F16, "", "y = Cast<to = 10>(x)", "x0"),
        (F16, "", "y = Cast<to = 16>(x)", "narrow<bfloat16>(x0)"),
        (I32, "", "y = Cast<to = 16>(x)", "narrow<bfloat16>(cast<float32>(x0))"),
        (F16, "", "a = Exp(x)  y = Cast<to = 6>(a)", "cast<int32>(narrow<float16>(exp(x0)))"),  # truncation jumps
        (F16, "", "a = Exp(x)  y = Cast<to = 1>(a)", "exp(x0)"),
        # operators that jump see the rounded operand, as they would unfused; the others see the unrounded one
        (F16, "", "a = Exp(x)  y = Floor(a)", "floor(narrow<float16>(exp(x0)))"),
        (F16, "", "a = Exp(x)  y = Less(a, x)", "lt(narrow<float16>(exp(x0)), x0)"),
        (F16, "", "a = Neg(x)  y = Floor(a)", "floor(neg(x0))"),
        (F16, "", "a = Exp(x)  y = Tanh(a)", "tanh(exp(x0))"),
        (F32, "", "a = Exp(x)  y = Floor(a)", "floor(exp(x0))"),
        (I32, "", "a = Neg(x)  y = Less(a, x)", "lt(neg(x0), x0)"),
        # attributes
        (F32, "", "y = LeakyRelu<alpha = 0.5>(x)", "select(lt(x0, 0.0f), mul(x0, 0.5f), x0)"),
        (F32, "", "y = IsInf<detect_negative = 0>(x)", "eq(x0, float(infinity()))"),
        ("uint8[N] x", "uint8 c = {3}", "y = BitShift<direction = \"RIGHT\">(x, c)", "shift_right(x0, uint8_t(3))"),
        (I32, "int32 c = {3}", "y = Mod(x, c)", "mod(x0, int32_t(3))"),
        (F32, "float c = {3}", "y = Mod<fmod = 1>(x, c)", "fmod(x0, 3.0f)"),
        (F32, "", "y = Elu<alpha = 0.5>(x)", "select(lt(x0, 0.0f), mul(expm1(x0), 0.5f), x0)"),
    ],
)  # fmt: skip
def test_meaning(inputs: str, constants: str, body: str, expected: str) -> None:
    assert spelled(_lowered(inputs, "float y", body, constants)) == [expected]


def test_a_common_expression_is_computed_once() -> None:
    program = _lowered(F32, "float[N] y, float[N] z", "a = Exp(x)  b = Exp(x)  y = Tanh(a)  z = Tanh(b)")
    assert [i.op for i in program.code] == ["exp", "tanh"]
    assert program.results == (2, 2)


def test_dead_code_is_removed() -> None:
    program = _lowered(F32, "float[N] y", "y = Pow(x, c)", "float c = {2}")
    assert [i.op for i in program.code] == ["mul"]
    assert program.results == (1,)


def test_depends_are_the_inputs_an_output_reads() -> None:
    program = _lowered(
        "float[N, 8] a, float[8] b, float[N, 1] c", "float y, float z, float w",
        "y = Add(a, b)  z = Tanh(c)  w = Mul(y, z)",
    )  # fmt: skip
    assert program.depends == ((0, 1), (2,), (0, 1, 2))
    assert program.ranks == (0, 0, 0)


@pytest.mark.parametrize(("dims", "rank"), [("", 0), ("[1]", 1), ("[1, 1, 1]", 3)])
def test_folded_constants_keep_their_rank(dims: str, rank: int) -> None:
    program = _lowered("float[N] x", "float y, float z", "y = Add(x, c)  z = Tanh(x)", f"float{dims} c = {{2}}")
    assert program.ranks == (rank, 0)
    assert program.inputs == ("float32",)


@pytest.mark.parametrize(
    ("body", "constants", "error"),
    [
        ("y = MatMul(x, x)", "", "The operator table has no MatMul"),
        ("y = Add(x, c)", "float[2] c = {1, 2}", "`c` is neither an input of the region nor a scalar constant"),
        ("y = Mod(x, x)", "", r"instruction 0 \(mod\): operands cannot be"),  # floats need fmod=1
    ],
)
def test_what_cannot_be_lowered_says_why(body: str, constants: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        _lowered("float[2] x", "float y", body, constants)

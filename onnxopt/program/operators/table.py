"""The operator table: what each elementwise operator means, in one row.

Type inference (graph/shapes/), fusion, the CUDA text, the program that the CPU kernel interprets and the table-driven
tests read these rows. Adding an operator is adding a row: docs/adding-an-operator.md.

The definitions are those of the ONNX operator specification and, for com.microsoft, of ONNX Runtime's
ContribOperators.md. They are written over the primitives of program/pointwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt.program.dtypes import ANY, BOOL, DTYPES, FLOAT8, FLOATS, INTEGERS, NUMBERS, SIGNED, UNSIGNED, to_ir
from onnxopt.program.expressions import Expr
from onnxopt.program.operators.elementwise import Call, Operand, Operator
from onnxopt.program.operators.quantization_operators import quantization
from onnxopt.program.operators.result_dtypes import Attributes, always, attribute_dtype, operand_dtype

CONTRIB = "com.microsoft"


def _unary(name: str, since: int, dtypes: frozenset[str], meaning: Callable[[Expr], Expr], **fields: Any) -> Operator:
    return Operator(name, since, (1, 1), dtypes, lambda c: meaning(c.args[0]), **fields)


def _binary(
    name: str, since: int, dtypes: frozenset[str], meaning: Callable[[Expr, Expr], Expr], **fields: Any
) -> Operator:
    return Operator(name, since, (2, 2), dtypes, lambda c: meaning(*c.args), **fields)


def _predicate(
    name: str, since: int, dtypes: frozenset[str], meaning: Callable[..., Expr], operands: int = 2
) -> Operator:
    arity, result = (operands, operands), always("bool")
    return Operator(name, since, arity, dtypes, lambda c: meaning(*c.args), result=result, exact=True)


def _variadic(name: str, since: int, dtypes: frozenset[str], op: str) -> Operator:
    return Operator(name, since, (1, None), dtypes, lambda c: _fold(op, c.args))


def _fold(op: str, args: tuple[Expr, ...]) -> Expr:
    result = args[0]
    for arg in args[1:]:
        result = result.apply(op, arg)
    return result


def _cast(c: Call) -> Expr:
    x = c.args[0]
    target = DTYPES[c.result]
    if target.kind != "float":
        x = x.narrow(c.operand)  # because truncation jumps, and so does rounding to 8 bits
    return x.cast(target.compute).narrow(c.result)


def _clip(c: Call) -> Expr:
    """A bound that is missing is the lowest or greatest finite number of the dtype, so infinities do not pass."""
    x = c.args[0]
    low: Expr | float | None
    high: Expr | float | None
    low, high = (c.args[k] if k < len(c.args) else None for k in (1, 2))
    if DTYPES[c.operand].kind == "float":
        finite = ml_dtypes.finfo(to_ir(c.operand).numpy())
        low, high = (float(finite.min) if low is None else low), (float(finite.max) if high is None else high)
    x = x if low is None else x.max(low)
    return x if high is None else x.min(high)


def _div(c: Call) -> Expr:
    x, y = c.args
    if c.operand in ("float16", "bfloat16") and isinstance(y.constant, float) and abs(y.constant) > 1e-30:
        return x * (1.0 / y.constant)  # rounding to 16 bits hides the half ulp of float32 that this costs
    return x / y


def _pow(c: Call) -> Expr:
    x, exponent = c.args
    powers = {1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x, 4: lambda: (x * x) * (x * x)}
    if exponent.constant in powers:
        return powers[int(exponent.constant)]()
    if x.is_float and exponent.constant == -1:
        return 1.0 / x
    if exponent.is_float and not x.is_float:  # 4 ** 0.5 is 2, so the exponent keeps its fraction
        return x.cast("float64").pow(exponent.cast("float64")).cast(x.dtype)
    return x.pow(exponent.cast(x.dtype))


def _mod(c: Call) -> Expr:
    return c.args[0].apply("fmod" if c.attr("fmod", 0) else "mod", c.args[1])


def _mean(c: Call) -> Expr:
    return _fold("add", c.args) / float(len(c.args))


def _isinf(c: Call) -> Expr:
    x = c.args[0]
    positive, negative = c.attr("detect_positive", 1), c.attr("detect_negative", 1)
    if positive and negative:
        return x.isinf()
    infinite = math.inf if positive else -math.inf
    return x.eq(infinite) if positive or negative else x.isinf().apply("and", False)


def _bit_shift(c: Call) -> Expr:
    return c.args[0].apply(
        "shift_left" if c.attr("direction", "LEFT") in ("LEFT", b"LEFT") else "shift_right", c.args[1]
    )


def _gelu(c: Call) -> Expr:
    tanh = c.attr("approximate", "none") in ("tanh", b"tanh")
    return _gelu_tanh(c.args[0]) if tanh else _gelu_erf(c.args[0])


def _gelu_erf(x: Expr) -> Expr:
    return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)


def _gelu_tanh(x: Expr) -> Expr:
    inner = (x * x * x * 0.044715 + x) * math.sqrt(2.0 / math.pi)
    return x * 0.5 * (inner.tanh() + 1.0)


def _sigmoid(x: Expr) -> Expr:
    return 1.0 / ((-x).exp() + 1.0)


def _softplus(x: Expr) -> Expr:
    return (-x.abs()).exp().log1p() + x.max(0.0)


def _elu(c: Call) -> Expr:
    x = c.args[0]
    return (x < 0.0).where(x.expm1() * c.attr("alpha", 1.0), x)


def _celu(c: Call) -> Expr:
    x, alpha = c.args[0], c.attr("alpha", 1.0)
    return x.max(0.0) + ((x / alpha).expm1() * alpha).min(0.0)


def _selu(c: Call) -> Expr:
    x = c.args[0]
    alpha, gamma = c.attr("alpha", 1.67326319217681884765625), c.attr("gamma", 1.05070102214813232421875)
    return (x <= 0.0).where(x.expm1() * alpha, x) * gamma


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return (x * alpha + beta).min(1.0).max(0.0)


def _shrink(c: Call) -> Expr:
    x, bias, limit = c.args[0], c.attr("bias", 0.0), c.attr("lambd", 0.5)
    return (x < -limit).where(x + bias, (x > limit).where(x - bias, 0.0 if x.is_float else 0))  # 0 for NaN too


def _leaky_relu(x: Expr, slope: Expr | float) -> Expr:
    return (x < 0.0 if x.is_float else x < 0).where(x * slope, x)


_CAST_TARGETS = tuple({"to": int(to_ir(name))} for name in DTYPES)
_BOUND = Operand(optional=True, scalar=True)
_ALPHA_BETA: tuple[Attributes, ...] = ({}, {"alpha": 0.3, "beta": 0.4})

_ROWS = (
    # arithmetic
    _binary("Add", 7, NUMBERS, lambda x, y: x + y),
    _binary("Sub", 7, NUMBERS, lambda x, y: x - y),
    _binary("Mul", 7, NUMBERS, lambda x, y: x * y),
    # Integers by zero: an error on the CPU as ONNX Runtime's; 0 on a GPU. The lowest one by -1 wraps.
    Operator("Div", 7, (2, 2), NUMBERS, _div),
    Operator("Pow", 7, (2, 2), NUMBERS, _pow, operands={1: Operand(NUMBERS)}, samples=(0.1, 3.0), ulp=8),
    # Integers by zero: an error on the CPU as ONNX Runtime's; x on a GPU. By -1: 0.
    Operator(
        "Mod",
        10,
        (2, 2),
        NUMBERS,
        _mod,
        dtypes_with=lambda attributes: NUMBERS if attributes.get("fmod", 0) else INTEGERS,
        exact=True,
        attributes=({"fmod": 1}, {}),
    ),
    _unary("Neg", 6, FLOATS | SIGNED, lambda x: -x),
    _unary("Abs", 6, NUMBERS, lambda x: x.abs()),
    _unary("Sign", 9, NUMBERS, lambda x: x.sign(), exact=True),
    _unary("Reciprocal", 6, FLOATS, lambda x: 1.0 / x),
    _unary("Sqrt", 6, FLOATS, lambda x: x.sqrt(), samples=(0.0, 4.0)),
    _variadic("Sum", 8, FLOATS, "add"),
    _variadic("Max", 8, NUMBERS, "max"),
    _variadic("Min", 8, NUMBERS, "min"),
    Operator("Mean", 8, (1, None), FLOATS, _mean),
    _unary("Floor", 6, FLOATS, lambda x: x.floor(), exact=True),
    _unary("Ceil", 6, FLOATS, lambda x: x.ceil(), exact=True),
    _unary("Round", 11, FLOATS, lambda x: x.round(), exact=True),
    Operator("Clip", 11, (1, 3), NUMBERS, _clip, operands={1: _BOUND, 2: _BOUND}),
    Operator(
        "Cast",
        6,
        (1, 1),
        ANY | FLOAT8,
        _cast,
        result=attribute_dtype("to"),
        dtypes_with=lambda attributes: ANY | FLOAT8 if attributes.get("saturate", 1) else frozenset(),
        samples=(0.0, 100.0),
        attributes=_CAST_TARGETS,
    ),
    _unary("Identity", 1, ANY | FLOAT8, lambda x: x),
    # quantization
    *quantization("", 10),
    *quantization(CONTRIB, 1),
    # exponentials and trigonometry
    _unary("Exp", 6, FLOATS, lambda x: x.exp()),
    _unary("Log", 6, FLOATS, lambda x: x.log(), samples=(0.01, 8.0)),
    _unary("Erf", 9, FLOATS, lambda x: x.erf()),
    _unary("Sin", 7, FLOATS, lambda x: x.sin()),
    _unary("Cos", 7, FLOATS, lambda x: x.cos()),
    _unary("Tan", 7, FLOATS, lambda x: x.tan(), samples=(-1.4, 1.4)),
    _unary("Asin", 7, FLOATS, lambda x: x.asin(), samples=(-1.0, 1.0)),
    _unary("Acos", 7, FLOATS, lambda x: x.acos(), samples=(-1.0, 1.0)),
    _unary("Atan", 7, FLOATS, lambda x: x.atan()),
    _unary("Sinh", 9, FLOATS, lambda x: x.sinh()),
    _unary("Cosh", 9, FLOATS, lambda x: x.cosh()),
    _unary("Tanh", 6, FLOATS, lambda x: x.tanh()),
    _unary("Asinh", 9, FLOATS, lambda x: x.asinh()),
    _unary("Acosh", 9, FLOATS, lambda x: x.acosh(), samples=(1.01, 8.0)),
    _unary("Atanh", 9, FLOATS, lambda x: x.atanh(), samples=(-0.99, 0.99)),
    # activations
    _unary("Relu", 6, FLOATS | SIGNED, lambda x: x.max(0)),
    _unary("Sigmoid", 6, FLOATS, _sigmoid),
    Operator("Gelu", 20, (1, 1), FLOATS, _gelu, attributes=({}, {"approximate": "tanh"})),
    Operator("Swish", 24, (1, 1), FLOATS, lambda c: c.args[0] * _sigmoid(c.args[0] * c.attr("alpha", 1.0))),
    Operator(
        "QuickGelu",
        1,
        (1, 1),
        FLOATS,
        lambda c: c.args[0] * _sigmoid(c.args[0] * c.attr("alpha", 1.702)),
        domain=CONTRIB,
        attributes=({}, {"alpha": 1.0}),
        reference=lambda x, alpha=1.702: x / (1.0 + np.exp(-alpha * x)),
    ),
    _unary("Mish", 18, FLOATS, lambda x: x * _softplus(x).tanh()),
    _unary("HardSwish", 14, FLOATS, lambda x: x * _hard_sigmoid(x, 1.0 / 6.0, 0.5)),
    Operator(
        "HardSigmoid",
        6,
        (1, 1),
        FLOATS,
        attributes=_ALPHA_BETA,
        meaning=lambda c: _hard_sigmoid(c.args[0], c.attr("alpha", 0.2), c.attr("beta", 0.5)),
    ),
    Operator("Elu", 6, (1, 1), FLOATS, _elu, attributes=({}, {"alpha": 0.7})),
    Operator("Celu", 12, (1, 1), FLOATS, _celu, attributes=({}, {"alpha": 0.7})),
    Operator("Selu", 6, (1, 1), FLOATS, _selu),
    _unary("Softplus", 1, FLOATS, _softplus),
    _unary("Softsign", 1, FLOATS, lambda x: x / (x.abs() + 1.0)),
    Operator(
        "ThresholdedRelu",
        10,
        (1, 1),
        FLOATS,
        exact=True,
        attributes=({}, {"alpha": 0.3}),
        meaning=lambda c: (c.args[0] > c.attr("alpha", 1.0)).where(c.args[0], 0.0),
    ),
    Operator(
        "LeakyRelu",
        6,
        (1, 1),
        FLOATS,
        attributes=({}, {"alpha": 0.3}),
        meaning=lambda c: _leaky_relu(c.args[0], c.attr("alpha", 0.01)),
    ),
    _binary("PRelu", 9, FLOATS | frozenset({"int32", "int64", "uint32", "uint64"}), _leaky_relu),
    Operator("Shrink", 9, (1, 1), FLOATS, _shrink, exact=True, attributes=({}, {"bias": 0.2, "lambd": 0.7})),
    # comparisons and logic
    _predicate("Equal", 11, ANY, lambda x, y: x.eq(y)),
    _predicate("Less", 9, NUMBERS, lambda x, y: x < y),
    _predicate("LessOrEqual", 12, NUMBERS, lambda x, y: x <= y),
    _predicate("Greater", 9, NUMBERS, lambda x, y: x > y),
    _predicate("GreaterOrEqual", 12, NUMBERS, lambda x, y: x >= y),
    _predicate("IsNaN", 9, FLOATS, lambda x: x.isnan(), operands=1),
    Operator(
        "IsInf",
        10,
        (1, 1),
        FLOATS,
        _isinf,
        result=always("bool"),
        exact=True,
        attributes=({}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 0, "detect_positive": 0}),
    ),
    _unary("Not", 1, BOOL, lambda x: x.apply("not"), result=always("bool")),
    _binary("And", 7, BOOL, lambda x, y: x.apply("and", y), result=always("bool")),
    _binary("Or", 7, BOOL, lambda x, y: x.apply("or", y), result=always("bool")),
    _binary("Xor", 7, BOOL, lambda x, y: x.apply("xor", y), result=always("bool")),
    Operator(
        "Where",
        9,
        (3, 3),
        ANY,
        lambda c: c.args[0].where(c.args[1], c.args[2]),
        operands={0: Operand(BOOL)},
        result=operand_dtype(1),
    ),
    # bits
    Operator(
        "BitShift",
        11,
        (2, 2),
        UNSIGNED,
        _bit_shift,
        samples=(0, 9),
        attributes=({"direction": "LEFT"}, {"direction": "RIGHT"}),
    ),
    _unary("BitwiseNot", 18, INTEGERS, lambda x: x.bit_not()),
    _binary("BitwiseAnd", 18, INTEGERS, lambda x, y: x.bit_and(y)),
    _binary("BitwiseOr", 18, INTEGERS, lambda x, y: x.bit_or(y)),
    _binary("BitwiseXor", 18, INTEGERS, lambda x, y: x.bit_xor(y)),
)

OPERATORS: dict[tuple[str, str], Operator] = {(row.domain, row.name): row for row in _ROWS}


def find(domain: str, op_type: str, version: int | None) -> Operator | None:
    """The row for an operator of a model importing `domain` at `version`; None where the table does not cover it."""
    row = OPERATORS.get(("" if domain == "ai.onnx" else domain, op_type))
    if row is None or version is None or version < row.since:
        return None
    return row

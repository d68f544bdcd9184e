"""Building programs: every instruction once, exact rewrites only, and which values are known to need no rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxopt.program.expressions import Builder, Expr


def _float32() -> Expr:
    return Builder(("float32",)).inputs[0]


def _ops(x: Expr) -> list[str]:
    return [i.op for i in x.builder.code]


def test_the_same_expression_is_one_value() -> None:
    x = _float32()
    assert (x.exp() + 1.0) is (x.exp() + 1.0)
    assert _ops(x) == ["exp", "const", "add"]


@pytest.mark.parametrize("op", ["add", "mul", "eq", "and", "or", "xor", "bit_and", "bit_or", "bit_xor"])
def test_operands_of_commutative_primitives_are_ordered(op: str) -> None:
    x, y = Builder(("int32", "int32")).inputs
    assert x.apply(op, y) is y.apply(op, x)


@pytest.mark.parametrize("op", ["sub", "div", "lt", "pow", "min", "max", "fmod"])
def test_operands_of_other_primitives_stay(op: str) -> None:
    """min and max too: which of two NaNs or zeros comes out may depend on the order."""
    x, y = Builder(("float32", "float32")).inputs
    assert x.apply(op, y) is not y.apply(op, x)


@pytest.mark.parametrize(
    ("first", "second", "dtype"), [(0.0, -0.0, "float32"), (1, 2, "int32"), (math.inf, -math.inf, "float64")]
)
def test_different_constants_are_different_values(first: float, second: float, dtype: str) -> None:
    builder = Builder(())
    assert builder.const(first, dtype) is not builder.const(second, dtype)
    assert builder.const(first, dtype) is builder.const(first, dtype)


def test_constants_of_different_dtypes_are_different_values() -> None:
    builder = Builder(())
    values = [builder.const(1, d) for d in ("float32", "float64", "int32", "int64", "bool")]
    assert len({v.id for v in values}) == 5
    assert [type(v.constant) for v in values] == [float, float, int, int, bool]


def test_nan_constants_are_one_value() -> None:
    builder = Builder(())
    assert builder.const(math.nan, "float32") is builder.const(float("nan"), "float32")


@pytest.mark.parametrize("value", [0.1, 1e300, -1e300, 1e-50, math.pi])
def test_float32_constants_are_rounded(value: float) -> None:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    assert Builder(()).const(value, "float32").constant == rounded
    assert Builder(()).const(value, "float64").constant == value


@pytest.mark.parametrize("divisor", [2.0, -0.25, 2.0**-40])
def test_division_by_a_power_of_two_multiplies(divisor: float) -> None:
    x = _float32()
    x / divisor
    assert _ops(x)[-1] == "mul"
    assert 1.0 / divisor in [i.value for i in x.builder.code]


@pytest.mark.parametrize("divisor", [3.0, 0.0, math.inf, math.nan, 2.0**100, 2.0**-100])
def test_other_divisions_stay(divisor: float) -> None:
    x = _float32()
    x / divisor
    assert _ops(x) == ["const", "div"]


def test_integer_division_stays() -> None:
    x = Builder(("int32",)).inputs[0]
    x / 4
    assert _ops(x) == ["const", "div"]


@pytest.mark.parametrize(
    ("build", "op", "args"),
    [
        (lambda x, y: x > y, "lt", (1, 0)),
        (lambda x, y: x >= y, "le", (1, 0)),
        (lambda x, y: x < y, "lt", (0, 1)),
        (lambda x, y: x <= y, "le", (0, 1)),
        (lambda x, y: x - y, "sub", (0, 1)),
        (lambda x, y: -y, "neg", (1,)),
    ],
)
def test_python_operators(build: object, op: str, args: tuple[int, ...]) -> None:
    builder = Builder(("float32", "float32"))
    result = build(*builder.inputs)  # type: ignore[operator]
    assert [(i.op, i.args) for i in builder.code] == [(op, args)]
    assert result.dtype == ("bool" if op in ("lt", "le") else "float32")


@pytest.mark.parametrize("op", ["sub", "div"])
def test_reflected_operators_keep_the_order(op: str) -> None:
    x = _float32()
    result = 3.0 - x if op == "sub" else 3.0 / x
    last = x.builder.code[-1]
    assert (last.op, last.args, result.id) == (op, (1, 0), 2)


def test_an_unknown_primitive_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="frobnicate"):
        _float32().frobnicate()


@pytest.mark.parametrize(
    ("build", "storage", "rounds"),
    [
        (lambda x, y: x, "float16", False),
        (lambda x, y: -x.abs(), "float16", False),
        (lambda x, y: x.max(y), "float16", False),
        (lambda x, y: x.max(0), "float16", False),
        (lambda x, y: x.max(0.1), "float16", True),
        (lambda x, y: (x < y).where(x, y), "float16", False),
        (lambda x, y: (x < y).where(x, 0.0), "float16", False),
        (lambda x, y: (x < y).where(x, x + y), "float16", True),
        (lambda x, y: x.floor(), "float16", False),
        (lambda x, y: x + y, "float16", True),
        (lambda x, y: x.exp(), "float16", True),
        (lambda x, y: x, "bfloat16", True),
        (lambda x, y: x + y, "float32", False),  # not a 16-bit dtype
        (lambda x, y: x < y, "float16", False),  # a bool
    ],
)
def test_narrow_rounds_only_what_may_not_fit(build: object, storage: str, rounds: bool) -> None:
    builder = Builder(("float16", "float16"))
    value = build(*builder.inputs)  # type: ignore[operator]
    narrowed = value.narrow(storage)
    assert (narrowed is not value) == rounds
    assert narrowed.narrow(storage) is narrowed
    assert [i.storage for i in builder.code if i.op == "narrow"] == ([storage] if rounds else [])


def test_cast_to_its_own_dtype_is_nothing() -> None:
    x = _float32()
    assert x.cast("float32") is x
    assert x.cast("int32").dtype == "int32"


def test_the_key_tells_apart_what_python_calls_equal() -> None:
    def key(dtype: str, value: float, inputs: tuple[str, ...] = ("float32",)) -> object:
        builder = Builder(inputs)
        builder.const(value, dtype)
        return builder.key

    assert key("float32", 0.0) == key("float32", 0.0) and key("float32", math.nan) == key("float32", math.nan)
    others = [("float32", -0.0), ("int32", 0), ("bool", False), ("float32", 1.0)]
    assert all(key("float32", 0.0) != key(*other) for other in others)
    assert key("float32", 0.0) != key("float32", 0.0, ("float16",))

"""Expr: builds a Program by arithmetic on Python objects. The rows of the operator tables are written in it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from onnxopt.program.dtypes import DTYPES, to_ir
from onnxopt.program.pointwise import PRIMITIVES, Instruction

# The result of each of these fits into a storage dtype without rounding if its float operands do.
_KEEPS_STORAGE = frozenset({"neg", "abs", "sign", "min", "max", "floor", "ceil", "round", "select"})
_EXACT = 2**24  # integers up to here are exact in float32
COMMUTES = frozenset({"add", "mul", "and", "or", "xor", "bit_and", "bit_or", "bit_xor", "eq"})


class Builder:
    """Collects instructions, each once: the same primitive of the same operands is the same value."""

    def __init__(self, inputs: tuple[str, ...]):
        self.code: list[Instruction] = []
        self._numbers: dict[Any, Expr] = {}
        self._values: list[Expr] = []  # of the instructions
        self.whole: dict[int, Expr] = {}  # by the id of a code: the float of the same number
        self.inputs = tuple(Expr(self, k, DTYPES[d].compute, d) for k, d in enumerate(inputs))
        self._first = len(inputs)

    def emit(
        self,
        op: str,
        dtype: str,
        *args: Expr,
        value: float | int | bool | None = None,
        storage: str | None = None,
        exact_in: str | None = None,
    ) -> Expr:
        ids = tuple(a.id for a in args)
        if op in COMMUTES:
            ids = tuple(sorted(ids))
        key = (op, dtype, ids, _constant_key(value), storage)
        if key not in self._numbers:
            self.code.append(Instruction(op, dtype, ids, value, storage))
            self._numbers[key] = Expr(self, self._first + len(self.code) - 1, dtype, exact_in, value)
            self._values.append(self._numbers[key])
        return self._numbers[key]

    def value(self, number: int) -> Expr:
        """The value of an instruction, by its position in the code."""
        return self._values[number]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for two builders of equal inputs and code. 0.0 differs from -0.0 here, unlike in an Instruction."""
        code = ((i.op, i.dtype, i.args, _constant_key(i.value), i.storage) for i in self.code)
        return (*(e.exact_in for e in self.inputs), *code)

    def const(self, value: float | int | bool, dtype: str) -> Expr:
        """A constant of a compute dtype, rounded to it."""
        if dtype == "float32":
            with np.errstate(over="ignore"):  # a number beyond float32 rounds to infinity
                value = float(np.float32(value))
        elif dtype == "float64":
            value = float(value)
        elif dtype == "bool":
            value = bool(value)
        else:
            value = int(value)
        return self.emit("const", dtype, value=value)


def _constant_key(value: Any) -> Any:
    """A key by which 0.0 differs from -0.0 and 1 from True, and NaN is equal to itself."""
    return None if value is None else (type(value).__name__, str(value))


@dataclasses.dataclass(frozen=True, eq=False)
class Expr:
    """One value of a program under construction.

    dtype: its compute dtype. exact_in: a storage dtype that holds the value without rounding, None where none is known.
    constant: the number, where the value is a constant.
    """

    builder: Builder
    id: int
    dtype: str
    exact_in: str | None = None
    constant: float | int | bool | None = None

    @property
    def is_float(self) -> bool:
        return self.dtype in ("float32", "float64")

    def _coerce(self, other: Expr | float | int | bool) -> Expr:
        return other if isinstance(other, Expr) else self.builder.const(other, self.dtype)

    def apply(self, op: str, *others: Expr | float | int | bool) -> Expr:
        """The primitive `op` of this value and the others. Python numbers become constants of this value's dtype."""
        args = (self, *(self._coerce(o) for o in others))
        exact = self.exact_in if op in _KEEPS_STORAGE and all(self._fits(a) for a in args) else None
        dtype = "bool" if PRIMITIVES[op].predicate else self.dtype
        return self.builder.emit(op, dtype, *args, exact_in=exact)

    def _fits(self, other: Expr) -> bool:
        return other.exact_in == self.exact_in or other.constant == 0

    def cast(self, dtype: str) -> Expr:
        """This value converted to the compute dtype `dtype`; unchanged where it has that dtype already."""
        if (number := self.builder.whole.get(self.id)) is not None and number.dtype == dtype:
            return number
        if type(self.constant) is int and dtype == "float32" and abs(self.constant) <= _EXACT:
            return self.builder.const(self.constant, dtype)
        return self if dtype == self.dtype else self.builder.emit("cast", dtype, self)

    def as_code(self, dtype: str) -> Expr:
        """This whole number, which is not -0, in the integer dtype `dtype`. Converted back it is this value again."""
        code = self.cast(dtype)
        self.builder.whole[code.id] = self
        return code

    def narrow(self, storage: str) -> Expr:
        """This value rounded to what `storage` (a 16-bit float dtype) can hold; unchanged where it fits already."""
        if DTYPES[storage].compute == storage or self.dtype != "float32" or self.exact_in == storage:
            return self
        if isinstance(self.constant, float):
            with np.errstate(over="ignore"):
                rounded = float(np.float32(self.constant).astype(to_ir(storage).numpy()))
            return self.builder.emit("const", "float32", value=rounded, exact_in=storage)
        return self.builder.emit("narrow", "float32", self, storage=storage, exact_in=storage)

    def where(self, if_true: Expr, if_false: Expr | float | int) -> Expr:
        """`if_true` where this bool holds, else `if_false`."""
        other = if_true._coerce(if_false)
        exact = if_true.exact_in if if_true._fits(other) else None
        return self.builder.emit("select", if_true.dtype, self, if_true, other, exact_in=exact)

    def __add__(self, other: Expr | float) -> Expr:
        return self.apply("add", other)

    def __radd__(self, other: float) -> Expr:
        return self._coerce(other).apply("add", self)

    def __sub__(self, other: Expr | float) -> Expr:
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> Expr:
        return self._coerce(other).apply("sub", self)

    def __mul__(self, other: Expr | float) -> Expr:
        return self.apply("mul", other)

    def __rmul__(self, other: float) -> Expr:
        return self._coerce(other).apply("mul", self)

    def __truediv__(self, other: Expr | float) -> Expr:
        """The quotient. Division by a constant power of two becomes an exact multiplication by its reciprocal."""
        divisor = self._coerce(other)
        if self.is_float and isinstance(divisor.constant, float) and _is_power_of_two(divisor.constant):
            return self * (1.0 / divisor.constant)
        return self.apply("div", divisor)

    def __rtruediv__(self, other: float) -> Expr:
        return self._coerce(other) / self

    def __neg__(self) -> Expr:
        return self.apply("neg")

    def __lt__(self, other: Expr | float) -> Expr:
        return self.apply("lt", other)

    def __le__(self, other: Expr | float) -> Expr:
        return self.apply("le", other)

    def __gt__(self, other: Expr | float) -> Expr:
        return self._coerce(other).apply("lt", self)

    def __ge__(self, other: Expr | float) -> Expr:
        return self._coerce(other).apply("le", self)

    def __getattr__(self, op: str) -> Any:
        """Every primitive by its name: x.exp(), x.max(y), ..."""
        if op not in PRIMITIVES:
            raise AttributeError(op)
        return lambda *others: self.apply(op, *others)


def _is_power_of_two(value: float) -> bool:
    return math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5 and 2.0**-60 < abs(value) < 2.0**60

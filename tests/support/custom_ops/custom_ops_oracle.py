"""What every primitive of onnxopt.program means in numpy, and inputs that exercise it: the CPU kernel's oracle."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxopt.program.dtypes import COMPUTE_DTYPES
from onnxopt.program.pointwise import PRIMITIVES

FLOATS = ("float32", "float64")
COUNT = 1029  # no multiple of any vector

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 2.5, 1e-40, -1e-40, math.inf, -math.inf, math.nan)


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A primitive on numpy arrays.

    floats: of float64 arrays, also the oracle of float32. integers: of integer arrays, wrapping. ulp: greatest error on
    float32. spread: random float inputs are uniform on [-spread, spread] and log-uniform over the whole range.
    """

    floats: Callable[..., Any] | None = None
    integers: Callable[..., Any] | None = None
    ulp: float = 0.5
    spread: float = 20.0


def _trunc_div(x, y):
    """Integer division towards zero. No element of y is 0: that is an error."""
    quotient = x // y
    towards_zero = quotient + ((quotient * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)
    return towards_zero.astype(x.dtype)


def _fmod(x, y):
    return (x - _trunc_div(x, y) * y).astype(x.dtype)


def _mod(x, y):
    remainder = _fmod(x, y)
    return np.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder).astype(x.dtype)


def _integer_pow(x, y):
    bits = 8 * x.dtype.itemsize
    signed = np.issubdtype(x.dtype, np.signedinteger)

    def one(base: int, exponent: int) -> int:
        if exponent < 0:
            return base ** exponent.__abs__() if base in (1, -1) else 0
        low = pow(base, exponent, 1 << bits)
        return low - (1 << bits) if signed and low >> (bits - 1) else low

    return np.array([one(int(a), int(b)) for a, b in np.broadcast(x, y)], x.dtype).reshape(np.broadcast(x, y).shape)


def _shift(shift):
    def apply(x, y):
        inside = y.astype(np.uint64) < 8 * x.dtype.itemsize
        return np.where(inside, shift(x, np.where(inside, y, 0).astype(x.dtype)), 0).astype(x.dtype)

    return apply


def _nan_first(choose):
    """numpy's minimum and maximum propagate NaN as ours do."""
    return choose


def _special_math(function):
    return np.vectorize(function, otypes=[np.float64])


MEANINGS: dict[str, Meaning] = {
    "neg": Meaning(np.negative, np.negative),
    "abs": Meaning(np.abs, np.abs),
    "sign": Meaning(np.sign, np.sign),
    "add": Meaning(np.add, np.add),
    "sub": Meaning(np.subtract, np.subtract),
    "mul": Meaning(np.multiply, np.multiply),
    "div": Meaning(np.divide, _trunc_div),
    "min": Meaning(_nan_first(np.minimum), np.minimum),
    "max": Meaning(_nan_first(np.maximum), np.maximum),
    "pow": Meaning(np.power, _integer_pow, ulp=1),
    "mod": Meaning(None, _mod),
    "fmod": Meaning(np.fmod, _fmod),
    "sqrt": Meaning(np.sqrt),
    "exp": Meaning(np.exp, ulp=1.5, spread=110),
    "expm1": Meaning(np.expm1, ulp=3, spread=110),
    "log": Meaning(np.log, ulp=1.5),
    "log1p": Meaning(np.log1p, ulp=2),
    "erf": Meaning(_special_math(math.erf), ulp=5.5, spread=5),
    "sin": Meaning(np.sin, ulp=3, spread=1000),
    "cos": Meaning(np.cos, ulp=3, spread=1000),
    "tan": Meaning(np.tan, ulp=4),
    "asin": Meaning(np.arcsin, ulp=3, spread=1),
    "acos": Meaning(np.arccos, ulp=3, spread=1),
    "atan": Meaning(np.arctan, ulp=3),
    "sinh": Meaning(np.sinh, ulp=4, spread=90),
    "cosh": Meaning(np.cosh, ulp=4, spread=90),
    "tanh": Meaning(np.tanh, ulp=5.5, spread=10),
    "asinh": Meaning(np.arcsinh, ulp=4),
    "acosh": Meaning(np.arccosh, ulp=4),
    "atanh": Meaning(np.arctanh, ulp=3, spread=1),
    "floor": Meaning(np.floor),
    "ceil": Meaning(np.ceil),
    "round": Meaning(np.round),
    "isnan": Meaning(np.isnan),
    "isinf": Meaning(np.isinf),
    "lt": Meaning(np.less, np.less),
    "le": Meaning(np.less_equal, np.less_equal),
    "eq": Meaning(np.equal, np.equal),
    "not": Meaning(None, np.logical_not),
    "and": Meaning(None, np.logical_and),
    "or": Meaning(None, np.logical_or),
    "xor": Meaning(None, np.logical_xor),
    "bit_not": Meaning(None, np.invert),
    "bit_and": Meaning(None, np.bitwise_and),
    "bit_or": Meaning(None, np.bitwise_or),
    "bit_xor": Meaning(None, np.bitwise_xor),
    "shift_left": Meaning(None, _shift(np.left_shift)),
    "shift_right": Meaning(None, _shift(np.right_shift)),
    "select": Meaning(np.where, np.where),
}  # const, cast and narrow have tests of their own


def cases() -> list[tuple[str, str]]:
    """Every primitive with every dtype its operands may have."""
    return [(op, d) for op in MEANINGS for d in sorted(PRIMITIVES[op].operands & COMPUTE_DTYPES)]


def operand_dtypes(op: str, dtype: str) -> tuple[str, ...]:
    return ("bool", dtype, dtype) if op == "select" else (dtype,) * PRIMITIVES[op].arity


def result_dtype(op: str, dtype: str) -> str:
    return "bool" if PRIMITIVES[op].predicate else dtype


def divides_by_zero(op: str, dtype: str, operands: list[np.ndarray]) -> bool:
    """Whether the kernel has to report an error instead of a result."""
    return op in ("div", "mod", "fmod") and dtype not in FLOATS and bool((operands[1] == 0).any())


def samples(op: str, dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    """COUNT values for each operand: pairs of special values first, random ones after them."""
    columns = []
    dtypes = operand_dtypes(op, dtype)
    special = [list(itertools.product(*(_special(d) for d in dtypes)))[:COUNT]][0]
    for k, d in enumerate(dtypes):
        first = np.array([row[k] for row in special], dtype=d)
        columns.append(np.concatenate([first, _random(d, COUNT - len(first), MEANINGS[op].spread, rng)]))
    return columns


def _special(dtype: str) -> tuple[Any, ...]:
    if dtype == "bool":
        return (False, True)
    if dtype in FLOATS:
        return _SPECIAL
    limits = np.iinfo(dtype)
    return tuple(v for v in (0, 1, 2, 3, 7, 8, 31, 63, 64, -1, -2, limits.min, limits.max) if v >= limits.min)


def _random(dtype: str, count: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype not in FLOATS:
        limits = np.iinfo(dtype)
        wide = rng.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
        return np.where(rng.random(count) < 0.5, wide, rng.integers(0, 12, count).astype(dtype)).astype(dtype)
    wide = 10.0 ** rng.uniform(-30, 30, count) * rng.choice([-1, 1], count)
    near = rng.uniform(-spread, spread, count)
    return np.where(rng.random(count) < 0.2, wide, near).astype(dtype)


def expected(op: str, dtype: str, operands: list[np.ndarray]) -> np.ndarray:
    """The oracle's result: exact for integers, in float64 for floats."""
    meaning = MEANINGS[op]
    with np.errstate(all="ignore"):
        if dtype not in FLOATS:
            return np.asarray(meaning.integers(*operands), result_dtype(op, dtype))
        widened = [a.astype(np.float64) if a.dtype != bool else a for a in operands]
        return np.asarray(meaning.floats(*widened))


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance of each float from the float64 oracle in units in the last place; inf where specials differ."""
    with np.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    finite = np.isfinite(got) & np.isfinite(rounded)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(got.dtype).tiny)).astype(np.float64)
        distance = np.abs(got.astype(np.float64) - want) / unit
    return np.where(same & ~finite, 0.0, np.where(finite, distance, np.inf))

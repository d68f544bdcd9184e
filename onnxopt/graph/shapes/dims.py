"""Dims as sympy expressions: sums, products, minima and maxima of symbols, which stand for sizes of at minimum 1.

Empty tensors are the one exception to what is inferred here: where y is 0, x * y / y is not x.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import sympy

Dim: TypeAlias = "int | sympy.Expr"
Dims: TypeAlias = tuple[Dim, ...]

NAMELESS = frozenset({None, "", "?", "-1"})  # exporters write these for unknown dims, which are not equal then
_LONGEST_EXPRESSION = 1000  # characters
_UNKNOWN = "unk__"  # prefix of the names of unknown dims, as in onnx's own shape inference
_SUMS: dict[type[ast.operator], str] = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__"}


def parse_dim(name: str) -> Dim:
    """The dim that a model names `name`: a symbol, or an expression such as "past + sequence"."""
    if len(name) > _LONGEST_EXPRESSION:
        return size_symbol(name)
    try:
        return _value(ast.parse(name, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        return size_symbol(name)


def _value(node: ast.expr) -> Dim:
    if isinstance(node, ast.Name):
        return size_symbol(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sympy.Integer(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return getattr(_value(node.left), _SUMS[type(node.op)])(_value(node.right))
    raise ValueError("not a sum or product of names")


@functools.cache
def size_symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


class Unknowns:
    """Makes symbols for unknown dims and elements, each with a name of its own. taken: names the model uses."""

    def __init__(self, used: Iterable[str]) -> None:
        numbers = [int(m.group(1)) for name in used if (m := re.search(rf"{_UNKNOWN}(\d+)", name))]
        self._next = max(numbers, default=-1) + 1

    def dim(self) -> sympy.Symbol:
        """A dim: an integer of at minimum 1."""
        return size_symbol(self._name())

    def integer(self) -> sympy.Symbol:
        """An element of an integer tensor, of any sign."""
        return sympy.Symbol(self._name(), integer=True)

    def _name(self) -> str:
        self._next += 1
        return f"{_UNKNOWN}{self._next - 1}"


def simplest(value: object) -> Dim:
    """An int where the expression is a number, else its expanded form, so that equal expressions are identical."""
    if isinstance(value, int):
        return value
    expanded = _expanded(sympy.sympify(value))
    return int(expanded) if expanded.is_Integer else expanded


@functools.lru_cache(maxsize=4096)
def _expanded(value: sympy.Expr) -> sympy.Expr:
    return value if value.is_Symbol or value.is_Integer else sympy.expand(value)


def dim_text(dim: Dim) -> int | str:
    """A dim as it is written in a model: a number, or the text of the expression."""
    return dim if isinstance(dim, int) else _expression_text(dim)


@functools.lru_cache(maxsize=4096)
def _expression_text(expression: sympy.Expr) -> str:
    return str(expression)


@functools.lru_cache(maxsize=4096)
def symbols_of(expression: sympy.Expr) -> tuple[sympy.Symbol, ...]:
    """The symbols in an expression, by name."""
    return tuple(sorted(expression.free_symbols, key=str))


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return simplest(result)


@functools.lru_cache(maxsize=4096)
def quotient(total: Dim, part: Dim) -> Dim:
    """total / part, given that the division leaves no remainder, as in Reshape."""
    return simplest(sympy.cancel(sympy.sympify(total) / part))


@functools.lru_cache(maxsize=4096)
def floor(value: Dim) -> Dim:
    """The greatest integer up to a value, in one form.

    floor((floor(x) + m) / n) is floor((x + m) / n), and what is added to x inside of a floor is 0 or more and below 1,
    in steps of 1/n where n x is an integer.
    """
    whole = sympy.expand(value)
    for term in sympy.Add.make_args(whole):
        part, inner = term.as_coeff_Mul()
        rest = sympy.expand((whole - term) / part)
        if isinstance(inner, sympy.floor) and part > 0 and (1 / part).is_Integer and rest.is_integer:
            return floor((inner.args[0] + rest) * part)
    added, rest = whole.as_coeff_Add()
    parts = [term.as_coeff_Mul() for term in sympy.Add.make_args(rest)]
    if all(inner.is_integer for _, inner in parts):
        steps = sympy.ilcm(1, *(sympy.Rational(part).q for part, _ in parts))
        added = sympy.floor(added * steps) / steps
    return simplest(sympy.floor(rest + added % 1) + sympy.floor(added))


@functools.lru_cache(maxsize=4096)
def joined(total: Dim) -> Dim:
    """A sum of sizes, where the first and the last part of x are x: min(n, x) + max(0, x - n)."""
    terms = sympy.Add.make_args(sympy.sympify(total))
    for part in (term for term in terms if isinstance(term, sympy.Min) and len(term.args) == 2):
        for count, whole in (part.args, part.args[::-1]):
            rest = sympy.Max(0, sympy.expand(whole - count))
            if rest in terms:
                return joined(simplest(total - part - rest + whole))
    return simplest(total)


@functools.lru_cache(maxsize=4096)
def minimum(a: Dim, b: Dim) -> Dim:
    return simplest(sympy.Min(a, b))


@functools.lru_cache(maxsize=4096)
def greatest(a: Dim, b: Dim) -> Dim:
    return simplest(sympy.Max(a, b))


@functools.lru_cache(maxsize=4096)
def sign(value: Dim) -> int | None:
    """1, 0 or -1 where the sign is the same for all sizes, else None."""
    if isinstance(value, int):
        return (value > 0) - (value < 0)
    expanded = _expanded(value)
    if expanded.is_zero:
        return 0
    if expanded.is_positive or _smallest(expanded, 1):
        return 1
    return -1 if expanded.is_negative or _smallest(-expanded, 1) else None


def not_negative(value: Dim) -> bool:
    """Whether a value is 0 or more for all sizes."""
    if isinstance(value, int):
        return value >= 0
    return bool(value.is_nonnegative) or _smallest(_expanded(value), 0) or any(map(not_negative, _below(value)))


def _below(value: sympy.Expr) -> list[Dim]:
    """Values that a sum is not less than: where it subtracts a minimum, those that subtract one of its operands."""
    terms = sympy.Add.make_args(value)
    return [
        simplest(value - term - operand)
        for term in terms
        if len(terms) > 1 and isinstance(-term, sympy.Min)
        for operand in (-term).args
    ]


def min_at_one(value: sympy.Expr) -> bool:
    """Whether a polynomial of sizes is 0 where all of them are 1, and more wherever one of them is larger."""
    expanded = _expanded(value)
    return expanded.is_polynomial(*symbols_of(expanded)) and _at_one(expanded) == 0


def _smallest(value: sympy.Expr, bound: int) -> bool:
    """Whether a polynomial is at minimum `bound` with all symbols 1 and has no negative term but the constant."""
    smallest = _at_one(value)
    return smallest is not None and smallest >= bound


def _at_one(value: sympy.Expr) -> int | None:
    """A polynomial with all symbols 1; None where it has a negative term beside the constant."""
    constant, rest = value.as_coeff_Add()
    terms = sympy.Add.make_args(rest)
    if not all(t.is_positive and t.is_integer for t in terms):
        return None
    return constant + sum(t.as_coeff_Mul()[0] for t in terms)


@functools.lru_cache(maxsize=4096)
def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """The size that a and b broadcast to, given that they do: the larger one; 0 for 0 beside 1."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    larger = greatest(a, b)
    return next((dim for dim in (a, b) if dim != larger == greatest(0, dim)), larger)  # neither is less than 0


def broadcasts_exactly(dim: Dim, to: Dim) -> bool:
    """Whether a dim that broadcasts to `to` is 1 or as long as `to`: min(n, to) is, where the model can run."""
    return dim in (1, to) or (isinstance(dim, sympy.Min) and to in dim.args)


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """The shape that these shapes broadcast to by numpy's rules, given that they do."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for k, dim in enumerate(shape, rank - len(shape)):
            result[k] = broadcast_dim(result[k], dim)
    return tuple(result)


def slice_length(dim: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim] | None:
    """First index and number of elements of dim[start:end:step], by ONNX's clamping; None where it is not known."""
    if all(isinstance(v, int) for v in (dim, start, end)):
        indices = range(dim)[slice(start, end, step)]  # type: ignore[misc]
        return indices.start, len(indices)
    if step < 0:
        whole = isinstance(start, int) and (start == -1 or start >= 2**31 - 1) and isinstance(end, int)
        return (dim - 1, dim) if step == -1 and whole and end <= -(2**31) else None  # type: ignore[operator]
    first, last = _clamped(dim, start), _clamped(dim, end)
    if first is None or last is None:
        return None
    rest = _rest(dim, start)
    if last == dim and step == 1 and rest is not None:
        return first, minimum(dim, rest)
    length = step_count(_distance(first, last), step)
    return first, length if not_negative(length) else greatest(0, length)


def _rest(dim: Dim, start: Dim) -> Dim | None:
    """n where a start is Max(0, dim - n), or -n, so that the last n elements follow, or all; None for others."""
    if isinstance(start, int):
        return -start if start < 0 else None
    if not isinstance(start, sympy.Max) or len(start.args) != 2 or 0 not in start.args:
        return None
    rest = simplest(dim - next(arg for arg in start.args if arg != 0))
    return rest if not_negative(rest) else None


def _distance(first: Dim, last: Dim) -> Dim:
    """last - first, of a minimum as the minimum of differences, which compares with other dims."""
    if isinstance(first, int) and isinstance(last, sympy.Min):
        return simplest(sympy.Min(*(arg - first for arg in last.args)))
    return last - first


def step_count(distance: Dim, step: int) -> Dim:
    """The number of steps of size `step` that begin within `distance`: distance / step, rounded up."""
    return floor((sympy.sympify(distance) + step - (1 if step > 0 else -1)) / step)


def _clamped(dim: Dim, index: Dim) -> Dim | None:
    if isinstance(index, int) and index >= 2**31 - 1:
        return dim
    if not_negative(index):
        return minimum(dim, index)
    if sign(index) == -1:
        return greatest(0, simplest(dim + index))
    return None

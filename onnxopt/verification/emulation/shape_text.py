"""Shapes as the manifest writes them, "float32[batch,Max(1, floor(n/64) - 1)]", at sizes of their symbols."""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from onnxopt.graph.signature import Tensor

_LONGEST = 1000  # characters of an expression
_LARGEST_POWER = 8
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Min": min,
    "Max": max,
    "floor": math.floor,
    "ceiling": math.ceil,
    "Mod": operator.mod,
}


@dataclasses.dataclass(frozen=True)
class ShapeText:
    """A dtype and dims, each a size, a symbol, an expression over symbols, or "?"; None where the rank is unknown."""

    dtype: str
    dims: tuple[str, ...] | None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of all dims, each once, in order."""
        return tuple(dict.fromkeys(name for dim in self.dims or () for name in _names(dim)))

    def at(self, name: str, sizes: Mapping[str, int]) -> Tensor:
        """A tensor of this shape. ValueError where a dim is negative, no integer, or unknown."""
        if self.dims is None or "?" in self.dims:
            raise ValueError("its shape is unknown")
        return Tensor(name, self.dtype, tuple(_size(dim, sizes) for dim in self.dims))


def parse(text: str) -> ShapeText:
    dtype, _, inner = text.removesuffix("]").partition("[")
    return ShapeText(dtype, None if inner == "?" else _split(inner))


def _split(inner: str) -> tuple[str, ...]:
    dims: list[str] = []
    depth = 0
    for part in inner.split(",") if inner else []:
        if depth:
            dims[-1] += f",{part}"
        else:
            dims.append(part)
        depth += part.count("(") - part.count(")")
    return tuple(dims)


def _parsed(dim: str) -> ast.expr | None:
    """The expression of a dim; None where it is none, so that the whole text is a symbol ("?batch", "a.b")."""
    try:
        tree = ast.parse(dim if len(dim) <= _LONGEST else "", mode="eval").body
    except (SyntaxError, ValueError):  # the second: it has a null character
        return None
    allowed = (ast.BinOp, ast.UnaryOp, ast.USub, ast.Call, ast.Name, ast.Constant, ast.Load, ast.Pow, *_OPERATORS)
    return tree if all(isinstance(node, allowed) for node in ast.walk(tree)) else None


def _names(dim: str) -> list[str]:
    tree = _parsed(dim)
    if tree is None:
        return [] if dim == "?" else [dim]
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS]


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    tree = _parsed(dim)
    size = sizes[dim] if tree is None else _value(tree, sizes)
    if size < 0 or size != int(size):
        raise ValueError(f"{dim} is {size}")
    return int(size)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(exponent))) if exponent <= _LARGEST_POWER:
            return _value(left, sizes) ** exponent
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            try:
                return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
            except ZeroDivisionError:
                raise ValueError("a division by 0") from None
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, sizes) for argument in arguments))
    raise ValueError("an expression of another sort")

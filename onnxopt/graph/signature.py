"""What a caller sees of a model: its inputs and outputs, and the symbols that stand for dynamic dims.

A dim is a size, a symbol ("batch") or an expression over symbols ("past + new"). One symbol has one size in all inputs.
Dims without a name get a symbol here: "?batch" where they come first, else "?INPUT.AXIS".
"""

from __future__ import annotations

import ast
import dataclasses
import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.errors import UsageError
from onnxopt.program.dtypes import from_ir

Sizes = dict[str, int]  # a size for every symbol

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST_DIM = 2**63 - 1  # what ONNX stores
_CACHE_RANK = 4  # samples, heads, length and elements
_SIZE_OF_UNKNOWN_RANK = 8  # elements of an input that declares no shape, taken to be a vector


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A graph input or output. dtype: ONNX's name in lower case (float32, int64, string, ...), "" where undeclared.

    dims: sizes, symbols or None where a dim has no name; None where even the rank is not declared, or it is no tensor
    (a sequence, map or optional), in which case `kind` says what it is.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None
    kind: str = "tensor"


def inputs_of(model: ir.Model) -> tuple[Tensor, ...]:
    """The inputs a caller must feed. An input with a default value (an initializer of its name) is left out."""
    return tuple(tensor_of(v) for v in model.graph.inputs if v.name not in model.graph.initializers)


def outputs_of(model: ir.Model) -> tuple[Tensor, ...]:
    """The outputs of the main graph, in order."""
    return tuple(tensor_of(v) for v in model.graph.outputs)


def tensor_of(value: ir.Value) -> Tensor:
    """An input or output as a caller sees it."""
    dtype = "" if value.dtype is None else dtype_name(value.dtype)
    dims = None
    if value.shape is not None:
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape.dims)
    is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
    kind = "tensor" if is_tensor else type(value.type).__name__.removesuffix("Type").lower()
    return Tensor(value.name or "", dtype, dims, kind)


def dtype_name(dtype: ir.DataType) -> str:
    """ONNX's name of a dtype in lower case; "float32" for FLOAT and "float64" for DOUBLE, as in numpy."""
    storable = from_ir(dtype)
    return storable.name if storable else dtype.name.lower()


def tensor_text(tensor: Tensor) -> str:
    """A tensor as "name: dtype[dims]"; "?" stands for an unnamed dim or an undeclared rank."""
    dims = "?" if tensor.dims is None else ",".join("?" if d is None else str(d) for d in tensor.dims)
    return f"{tensor.name}: {tensor.dtype}[{dims}]"


# --- symbols ---------------------------------------------------------------------------------------------------------


def symbol_of(tensor: Tensor, axis: int) -> str | None:
    """The symbol of a dynamic dim, None for a static one. Unnamed leading dims are taken to be one batch size."""
    assert tensor.dims is not None
    dim = tensor.dims[axis]
    if isinstance(dim, int) and dim >= 0:
        return None
    if isinstance(dim, str) and dim not in ("", "?"):
        return dim
    return "?batch" if axis == 0 else f"?{tensor.name}.{axis}"


def symbols(inputs: Sequence[Tensor]) -> tuple[str, ...]:
    """The symbols that need a size, in order of appearance; expressions over them ("past + new") are left out."""
    dynamic = [s for t in inputs for a in range(len(t.dims or ())) if (s := symbol_of(t, a))]
    free = dict.fromkeys(s for s in dynamic if not _is_expression(s))
    for s in dynamic:
        if _is_expression(s):
            free.update(dict.fromkeys(n.id for n in ast.walk(ast.parse(s, mode="eval")) if isinstance(n, ast.Name)))
    return tuple(free)


def roles(inputs: Sequence[Tensor]) -> tuple[set[str], dict[str, int]]:
    """Symbols that stand first in some input (batch), and symbols of the last two dims of images (space).

    With each symbol of space comes the number of pixels that it counts by: 32 for "32*height". Caches of a decoder are
    no images, though they have four dims too.
    """
    batch: set[str] = set()
    space: dict[str, int] = {}
    cached = lengths_of_caches(inputs)
    for t in inputs:
        for axis in range(len(t.dims or ())):
            symbol = symbol_of(t, axis)
            if symbol and axis == 0 and (len(t.dims or ()) > 1 or "batch" in symbol.lower()):
                batch.add(symbol)
            elif symbol and axis >= 2 and len(t.dims or ()) == 4 and t.dtype.startswith(("float", "uint8", "bfloat")):
                times, name = multiple_of(symbol) or (1, symbol)
                space[name] = max(times, space.get(name, 1))
    return batch, {name: times for name, times in space.items() if name not in batch and name not in cached}


def lengths_of_caches(inputs: Sequence[Tensor]) -> dict[str, int]:
    """The symbols of the third dim of keys and values of earlier tokens: equal tensors of four dims, beside integers.

    The number of elements, which is the last dim, is fixed, where the width of images of an open height is open too.
    With each symbol comes how much longer than other dims it is drawn, so that none of these are equal: 2, 4, ...
    """
    if not any(t.dtype in ("int32", "int64") and t.dims for t in inputs):
        return {}
    shapes = [t.dims for t in inputs if len(t.dims or ()) == _CACHE_RANK and t.dtype.startswith(("float", "bfloat"))]
    pairs = [t for t in inputs if t.dims is not None and shapes.count(t.dims) > 1]
    names = [s for t in pairs if isinstance(t.dims[-1], int) and (s := symbol_of(t, 2))]  # type: ignore[index]
    return {name: 2 + 2 * k for k, name in enumerate(dict.fromkeys(names))}


def multiple_of(symbol: str) -> tuple[int, str] | None:
    """(32, "height") of "32*height"; None for other dims."""
    if not _is_expression(symbol):
        return None
    tree = ast.parse(symbol, mode="eval").body
    if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.Mult):
        return None
    parts = sorted((tree.left, tree.right), key=lambda part: isinstance(part, ast.Name))
    times, name = parts
    if isinstance(times, ast.Constant) and isinstance(name, ast.Name) and type(times.value) is int and times.value > 0:
        return times.value, name.id
    return None


def _is_expression(symbol: str) -> bool:
    try:
        tree = ast.parse(symbol, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(tree, ast.BinOp) and all(
        isinstance(n, (ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)) for n in ast.walk(tree)
    )


# --- sizes of symbols ------------------------------------------------------------------------------------------------


def resolve(tensor: Tensor, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an input at these sizes. An input of undeclared rank is taken to be a vector of 8 elements."""
    if tensor.dims is None:
        return (_SIZE_OF_UNKNOWN_RANK,)
    shape = []
    for axis, dim in enumerate(tensor.dims):
        symbol = symbol_of(tensor, axis)
        shape.append(int(dim) if symbol is None else evaluate(symbol, sizes))  # type: ignore[arg-type]
    return tuple(shape)


def evaluate(symbol: str, sizes: Mapping[str, int]) -> int:
    """The size of a symbol or of an expression over symbols ("past + new"). KeyError where one has no size."""
    if symbol in sizes or not _is_expression(symbol):
        return sizes[symbol]

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        return sizes[node.id] if isinstance(node, ast.Name) else int(node.value)  # type: ignore[attr-defined]

    return max(value(ast.parse(symbol, mode="eval").body), 0)


def pin(
    inputs: Sequence[Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    checked: Mapping[str, int] = types.MappingProxyType({}),
) -> Sizes:
    """Sizes of symbols that the user's shapes fix: of an input by its name, or of one dim by its symbol.

    checked: sizes of symbols that the graph itself checks, which come with them. UsageError where a name is neither, a
    rank or a static dim does not fit, or a symbol gets two sizes.
    """
    if not isinstance(shapes, Mapping):
        raise UsageError(f"shapes are sizes by name, as {{'ids': (8, 128), 'batch': (8,)}}, not {shapes!r}")
    by_name = {t.name: t for t in inputs}
    names = symbols(inputs)
    pinned: Sizes = {}

    def fix(symbol: str, size: int, where: str) -> None:
        if (multiple := multiple_of(symbol)) is not None:
            if size % multiple[0]:
                raise UsageError(f"shape of {where}: dim '{symbol}' is {size}, which is no multiple of {multiple[0]}")
            symbol, size = multiple[1], size // multiple[0]
        if checked.get(symbol, size) != size:
            raise UsageError(
                f"shape of {where}: dim '{symbol}' is {size}, and the graph only accepts {checked[symbol]}"
            )
        if pinned.setdefault(symbol, size) != size:
            raise UsageError(f"shape of {where}: dim '{symbol}' is {size} here and {pinned[symbol]} elsewhere")

    for name, shape in shapes.items():
        unchecked: object = shape  # from a caller whose types nobody checked
        if not isinstance(unchecked, (tuple, list)) or not all(type(d) is int for d in unchecked):
            raise UsageError(f"shape of {name}: {shape!r} is no tuple of sizes, as (8, 128) is, or (8,) for one dim")
        if any(d < 0 for d in shape):
            raise UsageError(f"shape of {name}: {list(shape)} has a negative dim")
        if any(d > _LARGEST_DIM for d in shape):
            raise UsageError(f"shape of {name}: {list(shape)} has a dim above {_LARGEST_DIM:,}")
        if name in by_name:
            tensor = by_name[name]
            if tensor.dims is None:
                continue
            if len(tensor.dims) != len(shape):
                raise UsageError(
                    f"shape of {name}: the input has {len(tensor.dims)} dims {list(tensor.dims)}, not {list(shape)}"
                )
            for axis, size in enumerate(shape):
                symbol = symbol_of(tensor, axis)
                if symbol is not None:
                    fix(symbol, size, name)
                elif tensor.dims[axis] != size:
                    raise UsageError(f"shape of {name}: dim {axis} is {tensor.dims[axis]}, not {size}")
        elif name in names and len(shape) == 1:
            fix(name, shape[0], name)
        elif name in names:
            raise UsageError(f"shape of {name}: it is one dim and has one size, not {list(shape)}")
        else:
            raise UsageError(
                f"shape of {name}: no such input or dim; inputs are {', '.join(by_name)}; dims {', '.join(names)}"
            )
    return pinned | {name: checked[name] for name in names if name in checked}


def typical(inputs: Sequence[Tensor], pinned: Sizes) -> Sizes:
    """A size for every symbol: as pinned, else 1 for a batch, 224 for sides of images, 128 for others."""
    batch, space = roles(inputs)
    sides = {n: max(224 // times, 1) for n, times in space.items()}
    return {n: 1 if n in batch else sides.get(n, 128) for n in symbols(inputs)} | pinned


def describe(sizes: Sizes) -> str:
    """Sizes as "batch=1, sequence=7", "static" where every dim is fixed."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "static"

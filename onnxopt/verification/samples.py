"""Inputs to verify and benchmark with: which sizes the dynamic dims take, and what the tensors hold.

A model says little about its inputs: names, dtypes, and dims of which some are symbols. What makes sense is read from
there: token ids stay below the table they index (`index_bounds`), masks are 0 and 1, lengths are the lengths of the
tensors beside them, everything else is drawn from N(0, 1) or a few small integers. Dims with one symbol share one size,
also across inputs; "past + new" is computed. Where a model accepts none of the usual sizes, `fallback_sizes` tries
many.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.errors import UsageError
from onnxopt.program.dtypes import from_ir, to_ir

Array = np.ndarray[Any, Any]
Sizes = dict[str, int]  # a size for every symbol

_PRIMES = (7, 11, 13, 17, 19, 23)
# Sizes that models insist on: powers of two, image sides, audio frames at 8 and 16 kHz.
_INSISTED = (32, 64, 512, 224, 256, 128, 320, 640, 16, 100, 160, 200, 400, 480, 576, 800, 1024, 4000, 16000, 32000)
_INDEX_PRESERVING = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


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
    """The inputs a caller must feed: those with an initializer of the same name are left to it."""
    return tuple(_tensor(v) for v in model.graph.inputs if v.name not in model.graph.initializers)


def outputs_of(model: ir.Model) -> tuple[Tensor, ...]:
    return tuple(_tensor(v) for v in model.graph.outputs)


def _tensor(value: ir.Value) -> Tensor:
    dtype = "" if value.dtype is None else dtype_name(value.dtype)
    dims = None
    if value.shape is not None:
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape.dims)
    is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
    kind = "tensor" if is_tensor else type(value.type).__name__.removesuffix("Type").lower()
    return Tensor(value.name or "", dtype, dims, kind)


def dtype_name(dtype: ir.DataType) -> str:
    known = from_ir(dtype)
    return known.name if known else dtype.name.lower()


def index_bounds(model: ir.Model) -> dict[str, int]:
    """For each integer input whose values become Gather indices into initializers: the smallest such table's size."""
    bounds: dict[str, int] = {}
    for value in model.graph.inputs:
        if value.dtype is None or not value.dtype.is_integer():
            continue
        tables = list(_tables(value))
        if tables and value.name:
            bounds[value.name] = min(tables)
    return bounds


def _tables(index: ir.Value) -> Iterator[int]:
    seen, todo = {index}, [index]
    while todo:
        for node, position in todo.pop().uses():
            if node.op_type == "Gather" and position == 1:
                table, attribute = node.inputs[0], node.attributes.get("axis")
                axis = attribute.as_int() if attribute is not None else 0
                if table is not None and table.is_initializer() and table.shape is not None:
                    size = table.shape[axis]
                    if isinstance(size, int):
                        yield size
            elif node.op_type in _INDEX_PRESERVING and (position == 0 or node.op_type == "Concat"):
                fresh = [v for v in node.outputs if v not in seen]
                seen.update(fresh)
                todo.extend(fresh)


# --- sizes -----------------------------------------------------------------------------------------------------------


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
    found = [s for t in inputs for a in range(len(t.dims or ())) if (s := symbol_of(t, a))]
    free = dict.fromkeys(s for s in found if not _is_expression(s))
    for s in found:
        if _is_expression(s):
            free.update(dict.fromkeys(n.id for n in ast.walk(ast.parse(s, mode="eval")) if isinstance(n, ast.Name)))
    return tuple(free)


def usual_sizes(inputs: Sequence[Tensor]) -> Iterator[Sizes]:
    """Sizes worth checking at, most telling first: odd and all different, all ones (every broadcast), even, larger."""
    names = symbols(inputs)
    batch, space = roles(inputs)
    if not names:
        yield {}
        return
    primes = itertools.cycle(_PRIMES)
    yield {n: 1 if n in batch else 64 + 32 * k if n in space else next(primes) for k, n in enumerate(names)}
    yield {n: 2 if n in batch else 96 if n in space else 16 for n in names}
    yield {n: 3 if n in batch else 64 if n in space else 1 for n in names}
    yield {n: 2 if n in batch else 160 if n in space else 37 for n in names}


def fallback_sizes(inputs: Sequence[Tensor]) -> Iterator[Sizes]:
    """Every size models insist on, for all dims or for all but a few that are 1. For where the usual ones fail."""
    names = symbols(inputs)
    batch, _ = roles(inputs)
    rest = [n for n in names if n not in batch]
    for size in _INSISTED:
        for ones in itertools.chain.from_iterable(itertools.combinations(rest, k) for k in range(min(len(rest), 3))):
            yield {n: 1 if n in batch or n in ones else size for n in names}
    for size in (1, 8, 64):
        yield dict.fromkeys(names, size)


def roles(inputs: Sequence[Tensor]) -> tuple[set[str], set[str]]:
    """Symbols that stand first in some input (batch), and symbols of the last two dims of images (space)."""
    batch, space = set(), set()
    for t in inputs:
        for axis in range(len(t.dims or ())):
            symbol = symbol_of(t, axis)
            if symbol and axis == 0 and (len(t.dims or ()) > 1 or "batch" in symbol.lower()):
                batch.add(symbol)
            elif symbol and axis >= 2 and len(t.dims or ()) == 4 and t.dtype.startswith(("float", "uint8", "bfloat")):
                space.add(symbol)
    return batch, space - batch


def resolve(tensor: Tensor, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an input at these sizes. An undeclared rank is taken to be 1 with the symbol's size, or 8."""
    if tensor.dims is None:
        return (8,)
    shape = []
    for axis, dim in enumerate(tensor.dims):
        symbol = symbol_of(tensor, axis)
        shape.append(int(dim) if symbol is None else evaluate(symbol, sizes))  # type: ignore[arg-type]
    return tuple(shape)


def _is_expression(symbol: str) -> bool:
    try:
        tree = ast.parse(symbol, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(tree, ast.BinOp) and all(
        isinstance(n, (ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)) for n in ast.walk(tree)
    )


def evaluate(symbol: str, sizes: Mapping[str, int]) -> int:
    """The size of a symbol or of an expression over symbols ("past + new"). KeyError where one has no size."""
    if symbol in sizes or not _is_expression(symbol):
        return sizes[symbol]

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        return sizes[node.id] if isinstance(node, ast.Name) else int(node.value)  # type: ignore[attr-defined]

    return max(value(ast.parse(symbol, mode="eval").body), 0)


def pin(inputs: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """Sizes of symbols that the user's shapes fix: of an input by its name, or of one dim by its symbol.

    UsageError where a name is neither, a rank or a static dim does not fit, or two shapes give one symbol two sizes.
    """
    by_name = {t.name: t for t in inputs}
    names = symbols(inputs)
    pinned: Sizes = {}

    def fix(symbol: str, size: int, where: str) -> None:
        if pinned.setdefault(symbol, size) != size:
            raise UsageError(f"shape of {where}: dim '{symbol}' is {size} here and {pinned[symbol]} elsewhere")

    for name, shape in shapes.items():
        if any(d < 0 for d in shape):
            raise UsageError(f"shape of {name}: {list(shape)} has a negative dim")
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
        else:
            raise UsageError(
                f"shape of {name}: no such input or dim; inputs are {', '.join(by_name)}; dims {', '.join(names)}"
            )
    return pinned


def describe(sizes: Sizes) -> str:
    """Sizes as "batch=1, sequence=7", "static" where every dim is fixed."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "static"


# --- contents --------------------------------------------------------------------------------------------------------


def draw(inputs: Sequence[Tensor], sizes: Sizes, seed: int, bounds: Mapping[str, int]) -> dict[str, Array]:
    """Tensors for every input, the same for the same arguments on every machine."""
    random = np.random.default_rng([seed, len(inputs)])
    shapes = {t.name: resolve(t, sizes) for t in inputs}
    longest = max((s[1] for s in shapes.values() if len(s) > 1), default=1)
    return {t.name: _fill(random, t, shapes[t.name], bounds.get(t.name), longest) for t in inputs}


def _fill(
    random: np.random.Generator, tensor: Tensor, shape: tuple[int, ...], bound: int | None, longest: int
) -> Array:
    name, dtype = tensor.name.lower(), tensor.dtype or "float32"
    if dtype == "string":
        return np.array(random.choice(["a", "the", "model", "onnx"], shape), dtype=object)
    numpy_dtype = to_ir(dtype).numpy()
    if "mask" in name:
        return _mask(shape).astype(numpy_dtype)
    if "scale" in name or "temperature" in name:
        return random.uniform(0.3, 1.0, shape).astype(numpy_dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if not dtype.startswith(("int", "uint")):
        return random.standard_normal(shape).astype(numpy_dtype)
    if bound is None and name in ("sr", "sample_rate", "sampling_rate"):
        return np.full(shape, 16000, numpy_dtype)
    if bound is None and ("length" in name or name.endswith("_len")):
        return np.full(shape, longest, numpy_dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]) % (bound or shape[-1] or 1), shape).astype(numpy_dtype)
    if dtype == "uint8" and bound is None:
        return random.integers(0, 256, shape).astype(numpy_dtype)
    return random.integers(0, max(1, bound if bound is not None else 8), shape).astype(numpy_dtype)


def _mask(shape: tuple[int, ...]) -> Array:
    """Ones, with the last quarter of every second row masked out, as padding is."""
    mask = np.ones(shape)
    if mask.ndim and shape[-1] >= 4:
        mask.reshape(-1, shape[-1])[1::2, -(shape[-1] // 4) :] = 0
    return mask

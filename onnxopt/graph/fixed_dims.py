"""Dynamic dims that the user fixes: the artifact declares their sizes, and every pass takes them for constants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxopt.errors import UsageError
from onnxopt.graph import signature
from onnxopt.graph.signature import Sizes, Tensor

_NAME = re.compile(r"[^\W\d]\w*")


def chosen(fix: bool | str | Sequence[str], inputs: Sequence[Tensor], stated: Sizes) -> Sizes:
    """The dims to fix, with their sizes. stated: those whose size the user said; all of them where `fix` is True.

    fix: names of dims; a name may be a list with commas. UsageError where one is no dynamic dim, or has no size.
    """
    if isinstance(fix, bool):
        if fix and not stated:
            raise UsageError(f"fix: no size is stated; say which, as in batch=8; dims are {_listed(inputs)}")
        return dict(stated) if fix else {}
    names = [part.strip() for name in ([fix] if isinstance(fix, str) else fix) for part in name.split(",")]
    for name in names:
        if name not in signature.symbols(inputs):
            raise UsageError(f"fix: {name!r} is no dynamic dim; dims are {_listed(inputs)}")
        if name not in stated:
            raise UsageError(f"fix: dim {name!r} has no size; state it as a shape, {name}=8 for 8 elements")
    return {name: stated[name] for name in names}


def fix(model: ir.Model, sizes: Sizes) -> None:
    """Declare these sizes of dims wherever a value of the model has them. In place."""
    for value in model.graph.inputs:
        if value.shape is not None and value.name not in model.graph.initializers:
            value.shape = ir.Shape(list(_unnamed(value, sizes)))
    for value in _values(model):
        if value.shape is not None and any(isinstance(dim, ir.SymbolicDim) for dim in value.shape):
            value.shape = ir.Shape([_dim(dim, sizes) for dim in value.shape])


def shapes_of_others(
    shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[Tensor], sizes: Sizes
) -> dict[str, tuple[int, ...]]:
    """The user's shapes without those that only state the size of dims that are fixed. inputs: before that."""
    by_name = {tensor.name: tensor for tensor in inputs}

    def remains(name: str) -> bool:
        if name not in by_name:
            return name not in sizes
        dims = range(len(by_name[name].dims or ()))
        symbols = [s for axis in dims if (s := signature.symbol_of(by_name[name], axis)) is not None]
        return any(not _known(symbol, sizes) for symbol in symbols)

    return {name: shape for name, shape in shapes.items() if remains(name)}


def fixed_between(inputs: Sequence[Tensor], others: Sequence[Tensor]) -> Sizes:
    """The dims that are dynamic in the inputs of one model and have a size in those of another, by symbol."""
    by_name, sizes = {tensor.name: tensor for tensor in others}, Sizes()
    for tensor in inputs:
        other = by_name.get(tensor.name, tensor)
        for axis, size in enumerate(other.dims or ()):
            symbol = signature.symbol_of(tensor, axis) if axis < len(tensor.dims or ()) else None
            if symbol is not None and isinstance(size, int) and size >= 0:
                times, name = signature.multiple_of(symbol) or (1, symbol)
                sizes[name] = size // times
    return sizes


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs


def _unnamed(value: ir.Value, sizes: Sizes) -> Iterator[int | ir.SymbolicDim]:
    tensor = signature.tensor_of(value)
    for axis, dim in enumerate(value.shape or ()):
        yield sizes.get(signature.symbol_of(tensor, axis) or "", dim)


def _dim(dim: int | ir.SymbolicDim, sizes: Sizes) -> int | str | ir.SymbolicDim:
    if isinstance(dim, int) or not dim.value or not any(name in sizes for name in _NAME.findall(dim.value)):
        return dim
    if _known(dim.value, sizes):
        return signature.evaluate(dim.value, sizes)
    return _NAME.sub(lambda name: str(sizes.get(name[0], name[0])), dim.value)


def _known(symbol: str, sizes: Sizes) -> bool:
    try:
        signature.evaluate(symbol, sizes)
    except KeyError:
        return False
    return True


def _listed(inputs: Sequence[Tensor]) -> str:
    return ", ".join(signature.symbols(inputs)) or "all static"

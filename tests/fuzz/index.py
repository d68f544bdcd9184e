"""Random index operations for the graphs of tests/fuzz/graphs.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import onnx

Dims = tuple[str | int, ...]
Value = tuple[str, str, Dims]  # name, dtype, dims
LARGEST = 20_000  # elements of a value, symbols counted as 3
_SYMBOL = 3


class Growing(Protocol):
    """What a random index operation needs of the graph under construction."""

    rng: random.Random
    values: list[Value]
    nodes: list[onnx.NodeProto]
    initializers: list[onnx.TensorProto]


def grow(graph: Growing) -> None:
    """Add one random index operation on one of the last values, or none where the drawn one does not fit."""
    value = graph.rng.choice(graph.values[-5:])
    if value[2]:
        graph.rng.choice(_OPERATIONS)(graph, value)


def fits(shapes: Sequence[Dims]) -> bool:
    """Whether these shapes broadcast."""
    rank = max(len(dims) for dims in shapes)
    padded = [(1,) * (rank - len(dims)) + tuple(dims) for dims in shapes]
    return all(len({d for d in column if d != 1}) <= 1 for column in zip(*padded, strict=True))


def _size(dims: Dims) -> int:
    size = 1
    for d in dims:
        size *= d if isinstance(d, int) else _SYMBOL
    return size


def _emit(graph: Growing, op: str, operands: list[str], dtype: str, *results: Dims, **attributes: object) -> None:
    if any(_size(dims) > LARGEST for dims in results):
        return
    names = [f"i{len(graph.nodes)}_{k}" for k in range(len(results))]
    graph.nodes.append(onnx.helper.make_node(op, operands, names, name=names[0], **attributes))
    graph.values += [(name, dtype, dims) for name, dims in zip(names, results, strict=True)]


def _vector(graph: Growing, numbers: Sequence[int] | int) -> str:
    name = f"p{len(graph.initializers)}"
    dims = [] if isinstance(numbers, int) else [len(numbers)]
    values = [numbers] if isinstance(numbers, int) else list(numbers)
    graph.initializers.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, dims, values))
    return name


def _axis(graph: Growing, dims: Dims, fit: Callable[[int], bool]) -> int | None:
    axes = [k for k, d in enumerate(dims) if isinstance(d, int) and fit(d)]
    return graph.rng.choice(axes) if axes else None


def _replaced(dims: Dims, axis: int, *new: str | int) -> Dims:
    return (*dims[:axis], *new, *dims[axis + 1 :])


def _transpose(graph: Growing, value: Value) -> None:
    order = list(range(len(value[2])))
    graph.rng.shuffle(order)
    _emit(graph, "Transpose", [value[0]], value[1], tuple(value[2][k] for k in order), perm=order)


def _slice(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d > 1)
    if axis is None:
        return
    size = value[2][axis]
    assert isinstance(size, int)
    step = graph.rng.choice([1, 1, 1, 2, -1, -2])
    start, end = sorted(graph.rng.sample(range(size + 1), 2))
    first, last = (start, end) if step > 0 else (end - 1, start - 1 if start else -size - 1)
    count = len(range(*slice(first, last if last >= -size else None, step).indices(size)))
    if count:
        parameters = [_vector(graph, [n]) for n in (first, last, axis, step)]
        _emit(graph, "Slice", [value[0], *parameters], value[1], _replaced(value[2], axis, count))


def _concat(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: True)
    if axis is None:
        return
    rest = _replaced(value[2], axis)
    others = [v for v in graph.values if v[1] == value[1] and len(v[2]) == len(value[2])]
    others = [v for v in others if isinstance(v[2][axis], int) and _replaced(v[2], axis) == rest]
    parts = [value, *graph.rng.choices(others, k=graph.rng.randint(1, 2))]
    graph.rng.shuffle(parts)
    whole = sum(v[2][axis] for v in parts)  # type: ignore[misc]
    _emit(graph, "Concat", [v[0] for v in parts], value[1], _replaced(value[2], axis, whole), axis=axis)


def _split(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d % 2 == 0 and d > 0)
    if axis is not None:
        half = _replaced(value[2], axis, value[2][axis] // 2)  # type: ignore[operator]
        _emit(graph, "Split", [value[0]], value[1], half, half, axis=axis, num_outputs=2)


def _reshape(graph: Growing, value: Value) -> None:
    """Two neighbouring dims joined, or one cut in two; a symbolic dim behind is written as -1."""
    dims = value[2]
    joins = [k for k in range(len(dims) - 1) if isinstance(dims[k], int) and isinstance(dims[k + 1], int)]
    cuts = [(k, n) for k, d in enumerate(dims) if isinstance(d, int) for n in (2, 3, 4) if d % n == 0 and d > n]
    if joins and (not cuts or graph.rng.random() < 0.5):
        k = graph.rng.choice(joins)
        new = (*dims[:k], dims[k] * dims[k + 1], *dims[k + 2 :])  # type: ignore[operator]
        kept = k
    elif cuts:
        k, n = graph.rng.choice(cuts)
        new = _replaced(dims, k, n, dims[k] // n)  # type: ignore[operator]
        kept = k
    else:
        return
    shape = [0 if k < kept else d for k, d in enumerate(new)]
    if sum(isinstance(d, str) for d in shape) <= 1:
        numbers = [-1 if isinstance(d, str) else d for d in shape]
        _emit(graph, "Reshape", [value[0], _vector(graph, numbers)], value[1], new)


def _unsqueeze(graph: Growing, value: Value) -> None:
    axis = graph.rng.randint(0, len(value[2]))
    if len(value[2]) < 5:
        dims = (*value[2][:axis], 1, *value[2][axis:])
        _emit(graph, "Unsqueeze", [value[0], _vector(graph, [axis])], value[1], dims)


def _squeeze(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d == 1)
    if axis is not None:
        _emit(graph, "Squeeze", [value[0], _vector(graph, [axis])], value[1], _replaced(value[2], axis))


def _expand(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d == 1)
    if axis is not None:
        count = graph.rng.choice([2, 3, 5])
        shape = [1] * axis + [count] + [1] * (len(value[2]) - axis - 1)
        _emit(graph, "Expand", [value[0], _vector(graph, shape)], value[1], _replaced(value[2], axis, count))


def _tile(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d < 20)
    if axis is not None and value[1] != "bool":
        repeats = [2 if k == axis else 1 for k in range(len(value[2]))]
        dims = _replaced(value[2], axis, value[2][axis] * 2)  # type: ignore[operator]
        _emit(graph, "Tile", [value[0], _vector(graph, repeats)], value[1], dims)


def _pad(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d > 0)
    if axis is not None and value[1] in ("float32", "int32", "int64"):
        rank, (low, high) = len(value[2]), graph.rng.choice([(1, 0), (0, 2), (2, 1)])
        widths = [0] * (2 * rank)
        widths[axis], widths[axis + rank] = low, high
        dims = _replaced(value[2], axis, value[2][axis] + low + high)  # type: ignore[operator]
        _emit(graph, "Pad", [value[0], _vector(graph, widths)], value[1], dims)


def _gather(graph: Growing, value: Value) -> None:
    axis = _axis(graph, value[2], lambda d: d > 0)
    if axis is None:
        return
    size = value[2][axis]
    assert isinstance(size, int)
    if graph.rng.random() < 0.5 and len(value[2]) > 1:
        index = graph.rng.randint(-size, size - 1)
        _emit(graph, "Gather", [value[0], _vector(graph, index)], value[1], _replaced(value[2], axis), axis=axis)
        return
    indices = list(range(size))[:: graph.rng.choice([1, -1, 2])]
    dims = _replaced(value[2], axis, len(indices))
    _emit(graph, "Gather", [value[0], _vector(graph, indices)], value[1], dims, axis=axis)


_OPERATIONS = (
    *(_transpose, _transpose, _slice, _slice, _concat, _concat, _split, _reshape, _reshape, _reshape),
    *(_unsqueeze, _squeeze, _expand, _tile, _pad, _gather),
)

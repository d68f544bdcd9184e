"""Elements of inputs that their consumers accept: indices within a table, axes within a rank, divisors that are not 0.

graph/input_uses.py says what consumers take an input for. A function of `_DRAW` draws for one role. Dims that are known
at run time only are None; the functions then draw what is most often accepted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxopt.graph.input_uses import Role, Use
from onnxopt.graph.signature import Sizes, evaluate

Array = np.ndarray[Any, Any]

_FEW = 8  # where nothing restricts an integer
_UNKNOWN_TABLE = 2  # rows that an index may name where the table's size is unknown


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What to draw. data, result: as in Use, at the sizes of this run; None for a dim that is unknown.

    shape: of the input. count: its number of elements.
    """

    role: Role
    shape: tuple[int, ...]
    data: tuple[int | None, ...] | None
    result: tuple[int | None, ...] | None
    axis: int
    parts: int
    is_float: bool

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def size(self) -> int | None:
        """The size of `data` along the axis; None where unknown."""
        if self.data is None or not -len(self.data) <= self.axis < len(self.data):
            return None
        return self.data[self.axis]


def draw(
    random: np.random.Generator, uses: tuple[Use, ...], shape: tuple[int, ...], sizes: Sizes, is_float: bool
) -> Array | None:
    """Elements in float64 or int64, or text, that every use accepts; None where the uses leave them free.

    Of several uses, the smallest element of all draws is taken where these are bounds, else the first use's draw.
    """
    wanted = [
        Wanted(use.role, shape, _at(use.data, sizes), _at(use.result, sizes), use.axis, use.parts, is_float)
        for use in uses
    ]
    drawn = [_DRAW[want.role](random, want) for want in wanted]
    if not drawn:
        return None
    bounded = [values for want, values in zip(wanted, drawn, strict=True) if want.role in _BOUNDED]
    return np.minimum.reduce(bounded) if len(bounded) == len(drawn) else drawn[0]


def rows_of(use: Use, shape: tuple[int, ...], sizes: Sizes) -> int | None:
    """How many rows the table of an index has; None where unknown."""
    return Wanted(use.role, shape, _at(use.data, sizes), None, use.axis, use.parts, False).size


def _at(dims: tuple[int | str | None, ...] | None, sizes: Sizes) -> tuple[int | None, ...] | None:
    return None if dims is None else tuple(_size(dim, sizes) for dim in dims)


def _size(dim: int | str | None, sizes: Sizes) -> int | None:
    if not isinstance(dim, str):
        return dim
    try:
        return evaluate(dim, sizes)
    except KeyError:
        return None


# --- indices ---------------------------------------------------------------------------------------------------------


def _index(random: np.random.Generator, want: Wanted) -> Array:
    return random.integers(0, max(1, _UNKNOWN_TABLE if want.size is None else want.size), want.shape)


def _distinct_index(random: np.random.Generator, want: Wanted) -> Array:
    """Indices of which no two along the axis are equal, so that a scatter has one result, where that is possible."""
    axis, size = want.axis, want.size
    if not want.shape or not -len(want.shape) <= axis < len(want.shape) or size is None or want.shape[axis] > size:
        return _index(random, want)
    pool = list(want.shape)
    pool[axis] = size
    return np.argsort(random.random(pool), axis=axis).take(range(want.shape[axis]), axis=axis)


def _limits_nd(want: Wanted) -> Array | None:
    """The sizes that the last dim of `indices` refers to; None where one is unknown."""
    if not want.shape or want.data is None:
        return None
    sizes = want.data[want.axis : want.axis + want.shape[-1]]
    if len(sizes) != want.shape[-1] or None in sizes:
        return None
    return np.maximum(np.array(sizes, np.int64), 1)


def _index_nd(random: np.random.Generator, want: Wanted) -> Array:
    limits = _limits_nd(want)
    return np.zeros(want.shape, np.int64) if limits is None else random.integers(0, limits, want.shape)


def _distinct_index_nd(random: np.random.Generator, want: Wanted) -> Array:
    limits, rows = _limits_nd(want), want.count // max(1, want.shape[-1] if want.shape else 1)
    if limits is None or not limits.size or rows > int(np.prod(limits)):
        return _index_nd(random, want)
    flat = random.choice(int(np.prod(limits)), rows, replace=False)
    return np.stack(np.unravel_index(flat, tuple(limits)), axis=-1).reshape(want.shape)


# --- axes, shapes and sizes ------------------------------------------------------------------------------------------


def _axes(random: np.random.Generator, want: Wanted) -> Array:
    return _some_of(random, want, range(1 if want.data is None else len(want.data)))


def _squeeze_axes(random: np.random.Generator, want: Wanted) -> Array:
    return _some_of(random, want, [axis for axis, dim in enumerate(want.data or ()) if dim == 1])


def _unsqueeze_axes(random: np.random.Generator, want: Wanted) -> Array:
    return _some_of(random, want, range((0 if want.data is None else len(want.data)) + want.count))


def _some_of(random: np.random.Generator, want: Wanted, values: Any) -> Array:
    """Distinct values in ascending order; 0, 1, ... where there are too few."""
    if len(values) < want.count:
        return np.arange(want.count).reshape(want.shape)
    return np.sort(random.choice(values, want.count, replace=False)).reshape(want.shape)


def _sizes_of(dims: tuple[int | None, ...] | None, want: Wanted) -> Array | None:
    """The dims where all are known and there is one for each element wanted."""
    if dims is None or None in dims or len(dims) != want.count:
        return None
    return np.array(dims, np.int64).reshape(want.shape)


def _shape(random: np.random.Generator, want: Wanted) -> Array:
    """A shape for Reshape: the declared result's; else the data's, else one dim that takes all elements."""
    sizes = _sizes_of(want.result, want)
    if sizes is not None and (want.data is None or None in want.data or np.prod(sizes) == np.prod(_ints(want.data))):
        return sizes
    same = _sizes_of(want.data, want)
    if same is not None:
        return same
    shape = np.ones(want.count, np.int64)
    shape[-1:] = -1
    return shape.reshape(want.shape)


def _broadcast_shape(random: np.random.Generator, want: Wanted) -> Array:
    sizes = _sizes_of(want.result, want)
    return np.ones(want.shape, np.int64) if sizes is None else sizes


def _repeats(random: np.random.Generator, want: Wanted) -> Array:
    return random.integers(1, 4, want.shape)


def _extents(random: np.random.Generator, want: Wanted) -> Array:
    sizes = _sizes_of(want.result, want)
    return random.integers(1, 5, want.shape) if sizes is None else sizes


def _scales(random: np.random.Generator, want: Wanted) -> Array:
    """Factors of Resize: those that give the declared result, else 1 for leading dims and 2 for the last two."""
    data, result = _sizes_of(want.data, want), _sizes_of(want.result, want)
    if data is not None and result is not None and data.all():
        return result / data
    return np.where(np.arange(want.count) < want.count - 2, 1.0, 2.0).reshape(want.shape)


def _sizes(random: np.random.Generator, want: Wanted) -> Array:
    sizes, data = _sizes_of(want.result, want), _sizes_of(want.data, want)
    if sizes is None and data is not None:
        return data
    return random.integers(4, 9, want.shape) if sizes is None else sizes


def _split(random: np.random.Generator, want: Wanted) -> Array:
    """Sizes of about equal parts; Use.axis is the axis that is split."""
    total, parts = want.size, max(1, want.count)
    if total is None or not want.shape:
        return np.ones(want.shape, np.int64)
    return np.array([total // parts + (k < total % parts) for k in range(parts)]).reshape(want.shape)


def _affine_size(random: np.random.Generator, want: Wanted) -> Array:
    """The size of AffineGrid, N x C x H x W or N x C x D x H x W; N and the spatial sizes are those of its result."""
    size = random.integers(3, 6, want.shape)
    batch = want.data[0] if want.data else None
    spatial = want.result[1:-1] if want.result else ()
    if batch is not None and want.count > 2:
        size[0] = batch
        if len(spatial) == want.count - 2 and None not in spatial:
            size[2:] = _ints(spatial)
    return size


def _image_shape(random: np.random.Generator, want: Wanted) -> Array:
    spatial = want.result[2:] if want.result else None
    sizes = _sizes_of(spatial, want)
    return np.full(want.shape, 5) if sizes is None else sizes


def _block_shape(random: np.random.Generator, want: Wanted) -> Array:
    """The block shape of Col2Im: equal sizes whose product is the channels of one result channel, where there are such.

    Else 1 everywhere but in the last dim.
    """
    channels = want.data[1] if want.data and len(want.data) > 1 else None
    block = np.ones(want.shape, np.int64)
    result_channels = want.result[1] if want.result and len(want.result) > 1 else None
    if channels and result_channels:
        elements = channels // result_channels
        side = round(elements ** (1 / max(1, want.count)))
        if side**want.count == elements:
            return np.full(want.shape, side)
        block[-1:] = elements
    return block


def _pads(random: np.random.Generator, want: Wanted) -> Array:
    """0 or 1 at either end of each axis, which reflection allows where the axis has two elements or more."""
    dims = want.data or ()
    if len(dims) * 2 != want.count:
        return random.integers(0, 2, want.shape)
    limits = np.array([1 if dim is None else min(1, max(0, dim - 1)) for dim in dims] * 2).reshape(want.shape)
    return random.integers(0, limits + 1)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _between(low: float, high: float) -> Callable[[np.random.Generator, Wanted], Array]:
    """Integers from low to high inclusive, or floats in between."""

    def values(random: np.random.Generator, want: Wanted) -> Array:
        if want.is_float:
            return random.uniform(low, high, want.shape)
        return random.integers(int(low), int(high) + 1, want.shape)

    return values


def _constant(value: float) -> Callable[[np.random.Generator, Wanted], Array]:
    return lambda random, want: np.full(want.shape, value)


def _up_to_size(random: np.random.Generator, want: Wanted) -> Array:
    """From 1 to the size of the data along the axis."""
    return random.integers(1, max(1, 1 if want.size is None else want.size) + 1, want.shape)


def _number_text(random: np.random.Generator, want: Wanted) -> Array:
    return np.array([f"{value}" for value in random.integers(0, 100, want.count)], object).reshape(want.shape)


_DRAW: Mapping[Role, Callable[[np.random.Generator, Wanted], Array]] = {
    "index": _index,
    "index_nd": _index_nd,
    "distinct_index": _distinct_index,
    "distinct_index_nd": _distinct_index_nd,
    "axes": _axes,
    "squeeze_axes": _squeeze_axes,
    "unsqueeze_axes": _unsqueeze_axes,
    "shape": _shape,
    "broadcast_shape": _broadcast_shape,
    "repeats": _repeats,
    "range_start": _between(0, 2),
    "range_limit": _between(4, 12),
    "range_delta": _between(1, 2),
    "extents": _extents,
    "scales": _scales,
    "sizes": _sizes,
    "starts": _between(0, 1),
    "ends": _between(2, 4),
    "steps": _between(1, 2),
    "pads": _pads,
    "count": _up_to_size,
    "depth": _between(3, 9),
    "divisor": _between(1, 9),
    "split": _split,
    "length": _up_to_size,
    "trips": _between(0, 4),
    "true": _constant(1),
    "false": _constant(0),
    "ratio": _between(0, 0.9),
    "positive": _between(0.3, 1),
    "shift": _between(0, 7),
    "number_text": _number_text,
    "window": _between(8, 16),
    "frame": _between(2, 4),
    "affine_size": _affine_size,
    "image_shape": _image_shape,
    "block_shape": _block_shape,
    "zero": _constant(0),
    "additive_mask": _constant(0),  # samples.py draws it
    "condition": _between(0, 1),  # and where an input is a flag
}
_BOUNDED: frozenset[Role] = frozenset({"index", "index_nd", "count", "length", "shift"})


def _ints(dims: tuple[int | None, ...]) -> list[int]:
    return [dim for dim in dims if dim is not None]

"""Kinds of cases beyond random noise: edges of what inputs may hold, and of how large they may be.

Each is a case of its own, with a name, so that a message says which inputs show a difference.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt.graph.input_uses import Use
from onnxopt.graph.signature import Sizes, Tensor, lengths_of_caches, resolve, roles, symbol_of, symbols
from onnxopt.graph.traits import NARROW, Traits
from onnxopt.verification.empty_operators import why_not_empty

Array = np.ndarray[Any, Any]

ZEROS = "zeros and tiny values"  # also the first and the last row of tables, and masks with holes
NOTHING, DENORMAL = "zeros alone", "denormals alone"
LARGE, LESS_LARGE, LEAST_LARGE = "values up to 10000", "values up to 3000", "values up to 100"
NAN, INFINITE = "NaN", "infinities"
ONE, LONG, SIDE, MANY, EMPTY = "a dim of 1", "long", "a long side", "many elements", "empty"
UP_TO = {LARGE: 1e4, LESS_LARGE: 3e3, LEAST_LARGE: 1e2}
NONFINITE = frozenset({NAN, INFINITE})
# Cases whose outputs may be zero, NaN or nothing though a model's others vary.
UNTELLING = frozenset({NAN, INFINITE, NOTHING, DENORMAL, EMPTY})
# Kinds of which the size of values, and so of rounding, is that of noise.
LIKE_NOISE = frozenset({"", ZEROS, ONE, LONG, SIDE, MANY, EMPTY})
GREAT = frozenset({LONG, SIDE, MANY})  # sizes above the usual ones
_IMAGE, _SAMPLES_BESIDE_NAN = 4, 3  # rank, and samples of which one may be NaN
_SAMPLES_BESIDE_ZEROS = 2  # so many at least, where one more is zeros alone

LENGTHS = (65, 129, 257, 513, 1025, 2049, 4097, 16385, 70001)
# Of models with values of length x length, as attention's scores: of one sample, and of eight.
_LONGEST_OF_SQUARES, _LONG_OF_SQUARES = 4097, 1025
_SQUARES = frozenset({"Attention", "GroupQueryAttention", "LinearAttention", "MultiHeadAttention", "Softmax"})
_SIDES = (131, 259)
_LONG_SIDES = (259, 288)  # networks that halve images five times refuse the first
# Elements that such a tensor has in a case of its own, where there is time; of images, whose pools and strides leave a
# third of them behind a first convolution, first so many.
_MANY, _MANY_OF_IMAGES = 1 << 16, 1 << 18
# Samples, length and side of that case: the first that suffices.
_GROWING = tuple((8, n, min(n + 2, 259)) for n in (65, 129, 257, 513, 1025, 2049, 4097, 8193))
_SAMPLES = tuple((n, 37, 67) for n in (65, 513, 4097))
_MAX_SYMBOLS = 6  # so many symbols are 0 or 1 alone


def sprinkled(random: np.random.Generator, values: Array, kind: str, dtype: np.dtype[Any], number: int) -> Array:
    """Noise, with elements of the kind at random places. number: of the input, among all.

    One NaN, one infinity and one -infinity, each in a row of axis 0 of its own, other rows in other inputs: so what one
    input brings is not hidden by another's. Of the first input, where it may be images, one sample is of NaN alone: of
    windows with one NaN, ONNX Runtime's own pools give NaN or not.
    """
    info = ml_dtypes.finfo(dtype)
    if not values.size:
        return values
    if kind == NOTHING:
        return np.zeros_like(values)
    if kind == DENORMAL:
        return values * float(info.smallest_normal) / 4
    if kind == ZEROS:
        smallest = float(info.smallest_subnormal)
        edges = np.array([0.0, 0.0, 0.0, -0.0, 1.0, -1.0, 1e-6, -1e-6, 3 * smallest, -3 * smallest])
        values = np.where(random.random(values.shape) < 0.35, random.choice(edges, values.shape), values)
        if values.ndim > 1 and len(values) > _SAMPLES_BESIDE_ZEROS:
            values[-1] = 0.0  # silence, or a black image
        return values
    if kind in UP_TO:
        factors = np.exp(random.uniform(np.log(3.0), np.log(UP_TO[kind]), values.shape))
        return np.where(random.random(values.shape) < 0.25, np.sign(values) * factors, values)
    if kind in NONFINITE:
        values = np.array(values, copy=True)
        rows = values.reshape(values.shape[0] if values.ndim > 1 else 1, -1)
        for k, value in enumerate((np.nan,) if kind == NAN else (np.inf, -np.inf)):
            rows[-1 - (k + number) % len(rows), random.integers(rows.shape[1])] = value
        if kind == NAN and number == 0 and values.ndim >= _IMAGE and len(rows) >= _SAMPLES_BESIDE_NAN:
            rows[-2] = np.nan
        return rows.reshape(values.shape)
    return values


def kinds(traits: Traits, on_gpu: bool) -> tuple[str, ...]:
    """The kinds of values to try for a model, most telling first. on_gpu: where cuDNN's convolutions spread NaN."""
    is_rounding = traits.precision in ("float32", "float64", *NARROW)
    free = any(is_free(tensor, traits.uses.get(tensor.name, ())) for tensor in traits.inputs)
    names = [ZEROS] if free or any(_has_ends(t, traits.uses.get(t.name, ())) for t in traits.inputs) else []
    if not free or not is_rounding:  # steps of codes take networks of such inputs as far as wrong kernels do
        return tuple(names)
    names += [LESS_LARGE, LEAST_LARGE] if traits.is_narrow else [LARGE]
    takes_nan = any(is_free(t, traits.uses.get(t.name, ())) and takes_nan_of(traits, t.name) for t in traits.inputs)
    if takes_nan and not (on_gpu and "Conv" in traits.operators):
        names += [NAN, INFINITE]
    return (*names, NOTHING, DENORMAL)


def ends_when_empty(traits: Traits) -> bool:
    """Whether dims of 0 can end the process on CUDA: attention and rotary embedding of com.microsoft divide by them."""
    return any(name.startswith("com.microsoft::") for name in traits.operators)


def smaller(kind: str) -> tuple[str, ...]:
    """The kind, and for large values those that are tried where an output overflows."""
    large = tuple(UP_TO)
    return large[large.index(kind) :] if kind in UP_TO else (kind,)


def is_free(tensor: Tensor, uses: Sequence[Use]) -> bool:
    """Whether an input is of floats that may have any value."""
    named = any(word in tensor.name.lower() for word in ("mask", "scale", "temperature"))
    is_float = tensor.dtype in ("", "float32", "float64", *NARROW)
    return is_float and tensor.kind == "tensor" and not named and not uses


def takes_nan_of(traits: Traits, name: str) -> bool:
    """Whether NaN and infinity are tried in an input."""
    return name not in traits.nan_hazards


def _has_ends(tensor: Tensor, uses: Sequence[Use]) -> bool:
    """Whether an input is a mask, by 1 and 0 or by what is added to scores, or names rows of a table."""
    return "mask" in tensor.name.lower() or any(use.role in ("additive_mask", "index") for use in uses)


def empty_sizes(traits: Traits, sizes: Sizes) -> Iterator[Sizes]:
    """The sizes with the batch 0, with each other symbol 0, and with all of these; none that might end the process, and
    none that the user's model refuses."""
    batch, _ = roles(traits.inputs)
    names = [sorted(batch)] if batch and not why_not_empty(traits.operators, batch=True) else []
    if not why_not_empty(traits.operators, batch=False):
        names += _alone_and_together(traits, sizes)
    yield from (sizes | dict.fromkeys(some, 0) for some in names if frozenset(some) not in traits.never_empty)


def one_sizes(traits: Traits, sizes: Sizes) -> Iterator[Sizes]:
    """The sizes with each symbol 1 alone, but for the batch, and with all of them and the batch 1."""
    batch, _ = roles(traits.inputs)
    yield from (sizes | dict.fromkeys(names, 1) for names in _alone_and_together(traits, sizes))
    if batch:
        yield dict.fromkeys(sizes, 1)


def _alone_and_together(traits: Traits, sizes: Sizes) -> Iterator[list[str]]:
    batch, _ = roles(traits.inputs)
    rest = [name for name in sizes if name not in batch]
    yield from ([name] for name in rest[:_MAX_SYMBOLS])
    if len(rest) > 1:
        yield rest


def long_sides(traits: Traits, pinned: Sizes, sizes: Sizes) -> Iterator[tuple[Sizes, ...]]:
    """For each side of an image, the sizes of one sample at which it alone is long: others where those are refused."""
    batch, space = roles(traits.inputs)
    sides = [name for name in symbols(traits.inputs) if name in space and name not in pinned]
    for name in sides if len(sides) > 1 else ():
        alone = {n: 1 if n in batch else size for n, size in sizes.items()}
        yield tuple({**alone, name: max(side // space[name], 1), **pinned} for side in _LONG_SIDES)


def many_sizes(traits: Traits, pinned: Sizes) -> Iterator[Sizes]:
    """Sizes at which float inputs and outputs with a batch and a length have many elements: long, then many samples.

    Larger ones of images come first.
    """
    batch, space = roles(traits.inputs)
    names, cached = [n for n in symbols(traits.inputs) if n not in pinned], lengths_of_caches(traits.inputs)
    needed = {n for n in names if n not in batch} or set(names)
    tensors = (*traits.inputs, *traits.outputs) if needed - batch else traits.inputs  # outputs may be classes alone
    wanted = [t for t in tensors if _is_wide(t, traits, needed, batch)]
    steps = ((_MANY_OF_IMAGES, _GROWING),) if needed & set(space) else ()
    for many, growing in (
        *steps,
        *((_MANY, each) for each in ((_GROWING, _SAMPLES) if needed - batch else (_SAMPLES,))),
    ):
        for samples, length, side in growing if names else ():
            if _has_squares(traits) and length > _LONG_OF_SQUARES:
                break
            longer = {n: length + cached.get(n, 0) for n in names}
            drawn = {n: samples if n in batch else max(side // space[n], 1) if n in space else longer[n] for n in names}
            sizes = {n: pinned.get(n, drawn.get(n, length)) for n in symbols(traits.inputs)} | pinned
            if all(_elements(tensor, sizes) >= many for tensor in wanted):
                yield sizes
                break


def has_more_samples_alone(traits: Traits, usual: Sizes, sizes: Sizes) -> bool:
    """Whether sizes differ from usual ones by the batch alone."""
    batch, _ = roles(traits.inputs)
    return all(size == usual.get(name) for name, size in sizes.items() if name not in batch)


def _has_squares(traits: Traits) -> bool:
    return any(name.rpartition("::")[2] in _SQUARES for name in traits.operators)


def _elements(tensor: Tensor, sizes: Sizes) -> int:
    """Of a tensor; more than are wanted where an output has a symbol of its own."""
    try:
        return math.prod(resolve(tensor, sizes))
    except KeyError:
        return _MANY_OF_IMAGES


def _is_wide(tensor: Tensor, traits: Traits, needed: Collection[str], batch: Collection[str]) -> bool:
    """Whether a tensor is of floats and has a dim of the needed symbols, and one of the batch where there is any."""
    if tensor.dims is None or not is_free(tensor, traits.uses.get(tensor.name, ())):
        return False
    names = {symbol_of(tensor, axis) for axis in range(len(tensor.dims))}
    return bool(names & set(needed)) and (not batch or bool(names & set(batch)))


def long_sizes(traits: Traits, pinned: Sizes) -> Iterator[tuple[int, Sizes]]:
    """Growing sizes of all dims but the batch, which is 1; with each the size of the longest."""
    batch, _ = roles(traits.inputs)
    if all(name in batch or name in pinned for name in symbols(traits.inputs)):
        return
    for k, length in enumerate(LENGTHS):
        if _has_squares(traits) and length > _LONGEST_OF_SQUARES:
            return
        side = _SIDES[min(k, len(_SIDES) - 1)]
        yield length, at_length(traits, pinned, length, side)


def at_length(traits: Traits, pinned: Sizes, length: int, side: int = _SIDES[-1]) -> Sizes:
    """Sizes at which sequences are so long, and images have these sides."""
    batch, space = roles(traits.inputs)
    cached = lengths_of_caches(traits.inputs)
    sizes: Mapping[str, int] = {
        n: 1 if n in batch else max(side // space[n], 1) if n in space else length + cached.get(n, 0)
        for n in symbols(traits.inputs)
    }
    return {**sizes, **pinned}

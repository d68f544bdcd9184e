"""Inputs to verify and benchmark with: which sizes the dynamic dims take, and what the tensors hold.

A model says little about its inputs: names, dtypes, and dims of which some are symbols (graph/signature.py). What makes
sense is read from the graph (`Traits.uses`, sampling/contents.py): token ids stay below the table they index, axes
within the rank. Names say the rest: masks are 0 and 1, lengths are the lengths of the tensors beside them. All other
inputs are drawn from N(0, 1) or a few small integers. Where a model accepts none of the usual sizes, `fallback_sizes`
tries many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from onnxopt.graph.input_uses import Use
from onnxopt.graph.signature import Sizes, Tensor, lengths_of_caches, resolve, roles, symbol_of, symbols
from onnxopt.program.dtypes import to_ir
from onnxopt.verification.sampling import contents, edges, flags

Array = np.ndarray[Any, Any]

_PRIMES = (7, 11, 13, 17, 19, 23)
# Sizes that models insist on: powers of two, image sides, audio frames at 8 and 16 kHz.
_INSISTED = (32, 64, 512, 224, 256, 128, 320, 640, 16, 100, 160, 200, 400, 480, 576, 800, 1024, 4000, 16000, 32000)

_CACHES = ("past", "cache")  # in names of inputs that hold keys and values of earlier tokens
_SEQUENCE = 3  # tensors of a sequence
# What is added to scores is a bias at this seed, and in these kinds of cases; a mask alone in others.
_SEED_OF_BIASES, _KINDS_OF_BIASES = 1, (edges.ZEROS, edges.DENORMAL)

# --- sizes -----------------------------------------------------------------------------------------------------------


def usual_sizes(inputs: Sequence[Tensor]) -> Iterator[Sizes]:
    """Sizes worth checking at, most telling first: odd and all different, all ones (every broadcast), even, larger.

    Caches of a decoder have lengths of their own: equal ones hide that one is taken for another.
    """
    names = symbols(inputs)
    batch, space = roles(inputs)
    cached = lengths_of_caches(inputs)
    if not names:
        yield {}
        return
    primes = itertools.cycle(_PRIMES)

    def side(name: str, pixels: int) -> int:
        return max(pixels // space[name], 1)

    def usual(samples: int, pixels: int, length: int, cache: int) -> Sizes:
        lengths = {n: cache + cached[n] if n in cached else length for n in names}
        return {n: samples if n in batch else side(n, pixels) if n in space else lengths[n] for n in names}

    yield {n: 1 if n in batch else side(n, 64 + 32 * k) if n in space else next(primes) for k, n in enumerate(names)}
    yield usual(2, 96, 16, 20)
    yield usual(3, 64, 1, 32)
    yield usual(2, 160, 37, 18)
    yield usual(5, 64, 9, 12)


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


def fitted(inputs: Sequence[Tensor], sizes: Sizes, pinned: Sizes) -> Sizes:
    """The sizes, but for those that are pinned, and for a decoder's mask (batch, tokens).

    Exporters give the dims of that mask symbols of their own, where it is as long as the cache and the new tokens
    beside it together. Pinned sizes, and those of symbols that other inputs have too, stay as they are.
    """
    sizes = {**sizes, **pinned}
    masks = [t for t in inputs if "mask" in t.name.lower() and len(t.dims or ()) == 2]
    rest = [t for t in inputs if t not in masks]
    tokens = next((t for t in rest if len(t.dims or ()) == 2 and t.dtype in ("int32", "int64")), None)
    caches = (t for t in rest if len(t.dims or ()) == 4 and any(word in t.name.lower() for word in _CACHES))
    cache = next(caches, None)
    if tokens is None or cache is None:
        return sizes
    batch, new = resolve(tokens, sizes)
    whole = (batch, resolve(cache, sizes)[2] + new)
    fixed = {*symbols(rest), *pinned}
    mask_sizes = {symbol_of(mask, axis): size for mask in masks for axis, size in enumerate(whole)}
    return sizes | {s: size for s, size in mask_sizes.items() if s is not None and s in sizes.keys() - fixed}


def bytes_of(inputs: Sequence[Tensor], sizes: Sizes) -> int:
    """How many bytes the inputs take at these sizes; a string counts as 8."""
    widths = (64 if tensor.dtype in ("", "string") else to_ir(tensor.dtype).bitwidth for tensor in inputs)
    return sum(math.prod(resolve(t, sizes)) * width // 8 for t, width in zip(inputs, widths, strict=True))


# --- contents --------------------------------------------------------------------------------------------------------


def draw(
    inputs: Sequence[Tensor],
    sizes: Sizes,
    seed: int,
    uses: Mapping[str, tuple[Use, ...]],
    kind: str = "",
    finite: Collection[str] = (),
) -> dict[str, Any]:
    """Arrays for every input, the same for the same arguments on every machine. uses: by input, see Traits.

    kind: of sampling/edges.py, "" for noise; flags (sampling/flags.py) go by the seed alone. finite: inputs without
    NaN and infinity. A sequence is 3 arrays.
    """
    shapes = {t.name: resolve(t, sizes) for t in inputs}
    longest = max((s[1] for s in shapes.values() if len(s) > 1), default=1)
    of_flags = flags.numbers(inputs, uses)
    case = _Drawing(np.random.default_rng([seed, len(inputs)]), seed, sizes, longest)

    def one(number: int, tensor: Tensor) -> Array:
        if tensor.name in of_flags:
            dtype = to_ir(tensor.dtype).numpy()
            return np.full(shapes[tensor.name], flags.value(of_flags[tensor.name], seed), dtype)
        tensor_kind = "" if kind in edges.NONFINITE and tensor.name in finite else kind
        return _fill(case, tensor, shapes[tensor.name], uses.get(tensor.name, ()), tensor_kind, number)

    return {
        t.name: [one(k, t) for _ in range(_SEQUENCE)] if t.kind == "sequence" else one(k, t)
        for k, t in enumerate(inputs)
    }


class _Drawing(NamedTuple):
    """What the inputs of one case share. longest: of the second dims."""

    random: np.random.Generator
    seed: int
    sizes: Sizes
    longest: int


def _fill(
    case: _Drawing, tensor: Tensor, shape: tuple[int, ...], uses: tuple[Use, ...], kind: str, number: int
) -> Array:
    """number: of the input, among all."""
    random, sizes = case.random, case.sizes
    name, dtype = tensor.name.lower(), tensor.dtype or "float32"
    is_float = dtype != "bool" and not dtype.startswith(("int", "uint"))
    added = any(use.role == "additive_mask" for use in uses)
    uses = tuple(use for use in uses if use.role != "additive_mask")
    fitting = contents.draw(random, uses, shape, sizes, is_float and dtype != "string")
    if dtype == "string":
        words = random.choice(["a", "the", "model", "onnx"], shape)
        return np.array(words if fitting is None else fitting, dtype=object).reshape(shape)
    numpy_dtype = to_ir(dtype).numpy()
    if added and is_float:
        visible = _added(random, shape, kind, case.seed, numpy_dtype, number)
        return np.where(_mask(shape, kind) == 1, visible, _hidden(kind, numpy_dtype)).astype(numpy_dtype)
    if "mask" in name or (added and dtype == "bool"):
        return _mask(shape, kind).astype(numpy_dtype)
    if fitting is not None:
        if kind == edges.ZEROS and fitting.size > 1 and all(use.role == "index" for use in uses):
            fitting = _with_ends(fitting, uses, shape, sizes)
        if "position" in name and shape and fitting.size:
            fitting = np.broadcast_to(np.arange(shape[-1]) % (fitting.max() + 1), shape)
        return fitting.astype(numpy_dtype)
    if "scale" in name or "temperature" in name:
        return random.uniform(0.3, 1.0, shape).astype(numpy_dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if is_float:
        values = np.asarray(random.standard_normal(shape))
        with np.errstate(over="ignore"):
            return edges.sprinkled(random, values, kind, numpy_dtype, number).astype(numpy_dtype)
    if name in ("sr", "sample_rate", "sampling_rate"):
        return np.full(shape, 16000, numpy_dtype)
    if "length" in name or name.endswith("_len"):
        return np.full(shape, case.longest, numpy_dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(numpy_dtype)
    return np.asarray(random.integers(0, 256 if dtype == "uint8" else 8, shape)).astype(numpy_dtype)


def _mask(shape: tuple[int, ...], kind: str) -> Array:
    """Ones, with the last quarter of every second row masked out, as padding is; ones alone beside NaN and infinities.

    Beside zeros every row is masked: the first has holes, the second ends in padding, the third begins with it.
    """
    mask = np.ones(shape)
    if not mask.ndim or shape[-1] < 4 or kind in edges.NONFINITE:
        return mask
    rows, quarter = mask.reshape(-1, shape[-1]), shape[-1] // 4
    if kind == edges.ZEROS:
        rows[::3, 2::3], rows[1::3, -quarter:], rows[2::3, :quarter] = 0, 0, 0
    else:
        rows[1::2, -quarter:] = 0
    return mask


def _added(
    random: np.random.Generator, shape: tuple[int, ...], kind: str, seed: int, dtype: np.dtype[Any], number: int
) -> Array:
    """What is added to the scores of visible keys: zeros, as a mask does, or what a bias of positions may add."""
    if seed != _SEED_OF_BIASES and kind not in _KINDS_OF_BIASES:
        return np.zeros(shape)
    return edges.sprinkled(random, np.asarray(random.standard_normal(shape)), kind, dtype, number)


def _hidden(kind: str, dtype: np.dtype[Any]) -> float:
    """What is added to the scores of hidden keys: one of the three usual numbers, by the kind of case."""
    if kind == edges.ZEROS:
        return -np.inf
    return float(ml_dtypes.finfo(dtype).min) if kind else -1e4


def _with_ends(index: Array, uses: tuple[Use, ...], shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Indices among which are the first row of every table, and the last row that all of them have."""
    rows = [contents.rows_of(use, shape, sizes) for use in uses]
    flat = index.ravel().copy()
    flat[0], flat[-1] = 0, max(min((r for r in rows if r is not None), default=1), 1) - 1
    return flat.reshape(index.shape)

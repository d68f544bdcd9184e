"""Fresh: inputs that verification did not draw, and what a mutant makes of them.

Floats and sizes are chosen apart from onnxopt's own choice, so that what it forgets is missed: floats that are zeros,
ones, large, tiny, negative, denormals, infinities and NaN, alone and between usual ones; sizes from 0 to some hundreds.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxopt.graph import signature
from onnxopt.graph.signature import Sizes, Tensor
from onnxopt.runtime import isolated, sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.check import TIMES_SPREAD
from onnxopt.verification.compare import Limit, compare, is_float
from onnxopt.verification.reference import Reference
from onnxopt.verification.rounding import last_places, widening
from onnxopt.verification.sampling import samples

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Array = np.ndarray[Any, Any]
_SEED = 4711
_LARGEST = 1 << 22  # elements of all inputs
_SECONDS = 20.0  # of runs of the original
_CHANGES = 4  # runs with results that change
_BATCHES, _SIZES = (1, 3, 5, 0), (1, 5, 9, 33, 40, 66, 130, 140, 260, 300, 0)


def _some(rng: np.random.Generator, usual: Array, share: float, *values: float) -> Array:
    """The usual values, a share of them replaced."""
    return np.where(rng.random(usual.shape) < share, rng.choice(values, usual.shape), usual)


_FILLED: Mapping[str, Callable[[np.random.Generator, Array, np.finfo[Any]], Array]] = {
    "usual": lambda rng, usual, info: usual,
    "large": lambda rng, usual, info: usual * 3e3,
    "huge": lambda rng, usual, info: usual * float(info.max) / 16,
    "tiny": lambda rng, usual, info: usual * float(info.tiny) * 64,
    "zeros": lambda rng, usual, info: np.zeros_like(usual),
    "ones": lambda rng, usual, info: np.ones_like(usual),
    "negative": lambda rng, usual, info: -np.abs(usual),
    "some zeros": lambda rng, usual, info: _some(rng, usual, 0.1, 0.0),
    "some large": lambda rng, usual, info: _some(rng, usual, 0.02, 4e3, -4e3),
    "some denormals": lambda rng, usual, info: _some(rng, usual, 0.1, float(info.tiny) / 4, -float(info.tiny) / 4),
    "some NaN": lambda rng, usual, info: _some(rng, usual, 0.01, np.nan),
    "some infinite": lambda rng, usual, info: _some(rng, usual, 0.01, np.inf, -np.inf),
}


class Fresh:
    """What the original gives at fresh inputs, where the unchanged artifact gives the same within the limit.

    times: the limit from which on other outputs are above it.
    """

    def __init__(self, reference: Reference, artifact: Path, times: float = 1.0):
        self._reference = reference
        self._runs: dict[str, tuple[dict[str, Any], dict[str, _Expected]]] = {}
        models = (reference.model, artifact)
        original, right = (reference.open(model) for model in models)
        self._other_roundings = list(_other_roundings(reference))
        trials = [isolated.Trial(model, provider=reference.provider, library=None) for model in models]
        end = time.monotonic() + _SECONDS
        for name, feeds in _feeds(reference):
            if time.monotonic() > end:
                break
            try:
                if not all(np.size(value) for value in feeds.values()):  # which ends some processes
                    for trial in trials:
                        trial.run(feeds)
                expected, found = sessions.run(original, feeds), sessions.run(right, feeds)
            except RunError:
                continue
            limits = {k: _Expected(v, reference.limit(k), times) for k, v in expected.items()}
            # Where other roundings take the original above the limit, the limit says nothing of a kernel.
            for other in self._otherwise(feeds, expected):
                limits = {k: v for k, v in limits.items() if not v.excess(other[k])}
            if kept := {k: v for k, v in limits.items() if not v.excess(found[k])}:
                self._runs[name] = feeds, kept
        for trial in trials:
            trial.close()

    def _otherwise(self, feeds: dict[str, Any], expected: dict[str, Array]) -> Iterator[dict[str, Array]]:
        """What right kernels may give: by four times what last places move, and in float32 for a model of 16 bits."""
        for session, is_wide in self._other_roundings:
            with contextlib.suppress(RunError):
                found = sessions.run(session, {k: widening.widened(v) if is_wide else v for k, v in feeds.items()})
                yield {k: v if is_wide else _beyond(expected[k], v) for k, v in found.items()}

    def above(self, mutant: Path, library: Path | None = None, right: Path | None = None) -> str:
        """At which inputs a mutant is above the limit, and what it gives there; "" where at none.

        right: the library with the unchanged kernel, whose outputs have to be within the limit, too.
        """
        session = self._reference.open(mutant, library=library)
        unchanged = None if right is None else self._reference.open(mutant, library=right)
        for name, (feeds, expected) in self._runs.items():
            try:
                found = sessions.run(session, feeds)
            except RunError as error:
                return f"{name}: {error}"
            for output, expected_of in expected.items():
                excess = expected_of.excess(found[output])
                if excess and (unchanged is None or not expected_of.excess(sessions.run(unchanged, feeds)[output])):
                    return f"{name}: {output} {excess}"
        return ""


def _other_roundings(reference: Reference) -> Iterator[tuple[InferenceSession, bool]]:
    """Sessions of the original with results that change, and with True one of a model of 16 bits in float32."""
    if reference.traits.precision in ("float16", "bfloat16"):
        with tempfile.TemporaryDirectory(dir=reference.folder) as folder:
            yield reference.open(widening.widen(reference.model, Path(folder))), True
    for draw in range(_CHANGES):
        with tempfile.TemporaryDirectory(dir=reference.folder) as folder:
            try:
                changed = last_places.change(reference.model, Path(folder), draw)
            except last_places.NotChanged:  # nothing rounds
                return
            yield reference.open(changed, reuse_memory=False), False


def _beyond(expected: Array, changed: Array) -> Array:
    """As far from an output as right kernels may be, where last places change it to another."""
    if not is_float(expected) or changed.shape != expected.shape:
        return changed
    wide = expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(wide == changed, wide, wide + TIMES_SPREAD * (changed.astype(np.float64) - wide))


class _Expected:
    """An output of the original, and what another one may differ by."""

    def __init__(self, array: Array, limit: Limit, times: float):
        self._array, self._limit = array, limit
        if is_float(array):
            self._wide = array.astype(np.float64)
            finite = self._wide[np.isfinite(self._wide)]
            rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
            self._allowed = times * limit.relative * (np.abs(self._wide) + (rms or 1.0))

    def excess(self, other: Array) -> str:
        """How another output is above the limit, "" where it is not."""
        if not is_float(self._array) or other.shape != self._array.shape:
            difference = compare(self._array, other, self._limit)
            return "" if difference.ok else difference.reason or "differs"
        wide = other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(wide - self._wide) <= self._allowed
        right = (near & np.isfinite(wide) & np.isfinite(self._wide)) | (wide == self._wide)
        right |= np.isnan(wide) & np.isnan(self._wide)
        if right.all():
            return ""
        worst = np.unravel_index(int(np.argmin(right)), right.shape)
        return f"gives {wide[worst]:.4g} for {self._wide[worst]:.4g} at {tuple(map(int, worst))}"


def _feeds(reference: Reference) -> Iterator[tuple[str, dict[str, Any]]]:
    inputs, uses = reference.traits.inputs, reference.traits.uses
    for number, (sizes, filling) in enumerate(_choices(reference)):
        if samples.bytes_of(inputs, sizes) > 4 * _LARGEST:
            continue
        rng = np.random.default_rng([_SEED, number])
        drawn = samples.draw(inputs, sizes, _SEED + number, uses)
        for tensor in inputs:
            is_free = all(use.role == "additive_mask" for use in uses.get(tensor.name, ()))
            if tensor.kind == "tensor" and tensor.dtype in ("float32", "float16") and is_free:
                drawn[tensor.name] = _floats(rng, tensor, signature.resolve(tensor, sizes), filling)
        yield f"{signature.describe(sizes)}, {filling}", drawn


def _floats(rng: np.random.Generator, tensor: Tensor, shape: tuple[int, ...], filling: str) -> Array:
    usual = rng.standard_normal(shape)
    if "mask" in tensor.name.lower():  # added to scores: some are hidden
        return _some(rng, usual * 0, 0.3, -1e4).astype(tensor.dtype)
    info = np.finfo(np.dtype(tensor.dtype))
    with np.errstate(over="ignore"):
        return np.asarray(_FILLED[filling](rng, usual, info)).astype(tensor.dtype)


def _choices(reference: Reference) -> Iterator[tuple[Sizes, str]]:
    """Sizes and fillings: every filling at two sizes, then every size."""
    inputs = reference.traits.inputs
    pinned = signature.pin(inputs, {}, reference.traits.checked)
    names = signature.symbols(inputs)
    batch, _ = signature.roles(inputs)

    def fitted(samples_: int, size: int, **others: int) -> Sizes:
        sizes = {n: samples_ if n in batch else size for n in names} | others
        return samples.fitted(inputs, sizes, pinned)

    for filling in _FILLED:
        yield fitted(2, 9), filling
        if names:
            yield fitted(3, 66), filling
    for size in _SIZES if names else ():
        yield fitted(2, size), "usual"
    for count in _BATCHES if batch else ():
        yield fitted(count, 12), "usual"
    for name in names:
        for size in (1, 0, 40, 140, 300):
            yield fitted(2, 10, **{name: size}), "usual"

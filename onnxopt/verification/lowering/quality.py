"""How near a model of lower precision is to the float32 original: figures for each output."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt.errors import DisagreementError, UsageError
from onnxopt.runtime.sessions import CPU, RunError
from onnxopt.verification.compare import is_float
from onnxopt.verification.lowering.goals import CLASSES, Goals, Quality
from onnxopt.verification.reference import Reference

Array = np.ndarray[Any, Any]
Outputs = Mapping[str, Array]


def qualities(
    provider: str, library: bool, pairs: Iterable[tuple[Outputs, Outputs]], until: Goals | None = None
) -> tuple[Quality, ...]:
    """The figures of each output. pairs: of each case, the outputs of the original and of the other model.

    until: goals that decide: cases after the first that misses one are left out.
    """
    rows: dict[str, Quality] = {}
    for expected, actual in pairs:
        for name, reference in expected.items():
            quality = _quality(provider, library, name, reference, actual.get(name))
            rows[name] = _worse(rows[name], quality) if name in rows else quality
        # A cosine that one case lacks is that of the others.
        if until is not None and until.min_cosine is None and not until.reached_by(rows.values()):
            break
    return tuple(rows.values())


def quality_of(
    original: Reference,
    model: Path,
    library: Path | None,
    *,
    optimize: bool = True,
    label: str = "",
    until: Goals | None = None,
) -> tuple[Quality, ...]:
    """How near a model's outputs are to the original's, over all cases. label: in place of the provider.

    until: as for `qualities`. RunError where ONNX Runtime does not open the model, or refuses a case.
    """

    def pairs() -> Iterator[tuple[Outputs, Outputs]]:
        for case, actual in original.outputs_of(model, library, optimize=optimize):
            if isinstance(actual, RunError):
                raise actual
            yield original.outputs[case], actual

    return qualities(label or original.provider, library is not None, pairs(), until)


def qualities_of(
    originals: Sequence[Reference], model: Path, library: Path | None, *, on_cpu: bool = True
) -> tuple[Quality, ...]:
    """As quality_of, on each provider, with the library, where there is one, and without it.

    on_cpu: whether the library has kernels for the CPU; where it has none, ONNX Runtime runs the same nodes both times.
    """
    rows = list[Quality]()
    for original in originals:
        own = quality_of(original, model, library)
        rows += own
        if library is not None and original.provider == CPU and not on_cpu:
            rows += [dataclasses.replace(row, library=False) for row in own]
        elif library is not None:
            rows += quality_of(original, model, None)
    return tuple(rows)


def check_inputs(original: Reference) -> None:
    """UsageError where the user's inputs say nothing about ranges and quality: outputs are NaN, or all are empty."""
    for case, outputs in original.outputs.items():
        if not case.data:
            continue
        if not any(array.size for array in outputs.values()):
            raise UsageError(f"{case.data}: every output of the float32 model is empty with these inputs")
        for name, array in outputs.items():
            wrong = int(np.count_nonzero(np.isnan(array))) if is_float(array) else 0
            if wrong:
                problem = f"output {name} of the float32 model is NaN in {wrong} of {array.size} elements"
                raise UsageError(f"{case.data}: {problem}; look for NaN and infinities in the inputs")


def worst(rows: Iterable[Quality]) -> Quality | None:
    """The row that is farthest from float32; None without rows."""
    return max(rows, key=lambda row: (row.invalid, -math.inf if row.sqnr_db is None else -row.sqnr_db), default=None)


def refuse_missed(rows: Sequence[Quality], goals: Goals, advice: str) -> None:
    """DisagreementError where an output misses a goal; the message names the worst. advice: what to do then."""
    goals.check_rows(rows)
    row = worst(row for row in rows if goals.missed(row))
    if row is not None:
        raise DisagreementError(f"output {row.output} ({row.source}): {goals.missed(row)}; {advice}")


def _quality(provider: str, library: bool, name: str, reference: Array, actual: Array | None) -> Quality:
    label = (provider, library, name, 1)
    if actual is None or reference.shape != actual.shape:
        return Quality(*label, None, None, None, invalid=max(reference.size, 1))
    if not is_float(reference):
        equal = float(np.mean(reference == actual)) if reference.size else None
        return Quality(*label, None, None, equal)
    a, b = reference.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    finite = np.isfinite(a)
    invalid = int(np.count_nonzero(finite != np.isfinite(b)))
    both = finite & np.isfinite(b)
    if not both.all():
        a, b = a[both], b[both]
    signal, noise = _norm(a), _norm(a - b)
    level = signal or math.sqrt(a.size)  # zeros have no magnitude of their own
    sqnr = None if noise == 0 else round(20 * math.log10(level / noise), 2)
    product = signal * _norm(b)
    cosine = max(-1.0, min(1.0, float((a * b).sum()) / product)) if product else None
    rows = _rows(reference), _rows(actual)
    return Quality(*label, sqnr, cosine, _argmax(reference, actual), invalid, _top5(*rows), _kl(*rows))


def _norm(x: Array) -> float:
    """The 2-norm, on one thread: those of BLAS would wait for those of a session that just ran."""
    return math.sqrt(float(np.square(x).sum()))


def _argmax(reference: Array, actual: Array) -> float | None:
    if reference.ndim == 0 or reference.shape[-1] < 2 or not reference.size:
        return None
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(actual, axis=-1)))


def _rows(array: Array) -> Array | None:
    """The rows of at least CLASSES elements, float64, where all are finite."""
    if array.ndim == 0 or array.shape[-1] < CLASSES or not array.size:
        return None
    rows = array.astype(np.float64).reshape(-1, array.shape[-1])
    return rows if np.isfinite(rows).all() else None


def _top5(reference: Array | None, actual: Array | None) -> float | None:
    if reference is None or actual is None:
        return None
    five = np.argpartition(-actual, 4, axis=-1)[:, :5]
    return float(np.mean((five == np.argmax(reference, axis=-1)[:, None]).any(axis=-1)))


def _kl(reference: Array | None, actual: Array | None) -> float | None:
    if reference is None or actual is None:
        return None
    p, q = _log_softmax(reference), _log_softmax(actual)
    return max(0.0, float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1))))


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return result


def _worse(a: Quality, b: Quality) -> Quality:
    return dataclasses.replace(
        a,
        cases=a.cases + b.cases,
        sqnr_db=_minimum(a.sqnr_db, b.sqnr_db),
        cosine=_minimum(a.cosine, b.cosine),
        argmax=_minimum(a.argmax, b.argmax),
        invalid=a.invalid + b.invalid,
        top5=_minimum(a.top5, b.top5),
        kl=_maximum(a.kl, b.kl),
    )


def _minimum(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)


def _maximum(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)

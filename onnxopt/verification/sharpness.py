"""Which outputs say little though they agree: constants, zeros, NaN, and those of an unstable original."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from onnxopt.verification.check import Check
from onnxopt.verification.compare import Array, Limit, is_float


@dataclasses.dataclass(frozen=True)
class Weak:
    """An output whose comparisons decide nothing on a provider, and why."""

    provider: str
    output: str
    reason: str


def weak_outputs(
    provider: str,
    outputs: Iterable[Mapping[str, Array]],
    checks: Sequence[Check],
    limits: Mapping[str, Limit],
    decided: Iterable[str],
) -> tuple[Weak, ...]:
    """The outputs that count neither as passed nor as failed.

    outputs: the original's, of each case. checks: of the provider. limits: by output. decided: names of the outputs
    that depend on floats and on inputs; of these alone values are looked at, since others are compared exactly.
    """
    runs, reasons = list(outputs), dict[str, str]()
    for name in dict.fromkeys(name for run in runs for name in run):
        if name.split("[")[0] in set(decided):
            reason = _why_weak([run[name] for run in runs if name in run], limits[name])
            reasons |= {name: reason} if reason else {}
    by_output: dict[tuple[str, bool], list[Check]] = {}
    for check in checks:
        by_output.setdefault((check.output, check.library), []).append(check)
    for (name, _), rows in by_output.items():  # what kernels compute says nothing where ONNX Runtime's alone are sharp
        if name and all(row.ok for row in rows) and not any(row.is_sharp(limits[name].relative) for row in rows):
            reasons[name] = _why_unstable(rows)
    return tuple(Weak(provider, name, reason) for name, reason in reasons.items())


def _why_weak(arrays: Sequence[Array], limit: Limit) -> str:
    """Why the values of an output, in all cases, decide nothing; "" where they do."""
    if not any(array.size for array in arrays):
        return "it is empty in every case"
    values = [array.astype(np.float64).ravel() for array in arrays if array.dtype.kind in "fiub" or is_float(array)]
    if not values:
        return ""
    finite = [array[np.isfinite(array)] for array in values]
    if not any(array.size for array in finite):
        return "it is NaN or infinite throughout, in every case"
    low, high = min(a.min() for a in finite if a.size), max(a.max() for a in finite if a.size)
    if low == high == 0:
        return "it is zero throughout, in every case"
    if sum(a.size for a in finite) == 1:
        return ""  # one number of one case: nothing tells whether it ever changes
    magnitude = max(abs(low), abs(high))
    if magnitude < np.finfo(np.float32).tiny:
        return f"it is zero but for denormals (at most {magnitude:.2g}), in every case"
    if not is_float(arrays[0]) and low != high:
        return ""
    if high / magnitude - low / magnitude > 2 * limit.relative:  # of the greatest value, so that nothing overflows
        return ""
    if low == high:
        return f"it is constant, {high:.6g} throughout, in every case"
    return f"it is about {high:.3g} throughout, in every case, and varies by less than the limit allows"


def _why_unstable(rows: Sequence[Check]) -> str:
    """Why none of an output's checks is sharp, though all pass."""
    changed = "the original is unstable: where its results change in their last place, this output"
    if any(row.unstable for row in rows):
        return f"{changed} gets another shape, or NaN or infinity elsewhere"
    spread = min((row.noise for row in rows if row.noise is not None), default=None)
    if spread is not None:
        return f"{changed} moves by {spread:.3g} times the limit or more"
    own = min((row.exactness.original for row in rows if row.exactness is not None), default=0.0)
    return f"the original is unstable: it is {own:.3g} times the limit or more from its own results in float64"

"""The top of the page: how fast, how verified, how much was fused; and a card for each measurement or sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.report.latency_views import Sweep
from onnxopt.artifact.result import Errors, Result
from onnxopt.artifact.summary import counted, limit_text
from onnxopt.runtime.sessions import CUDA
from onnxopt.verification.executed import EMULATED

_GOOD, _BAD, _MUTED = "good", "bad", "muted"
_VERDICTS = {
    "passed": "Passed",
    "failed": "FAILED",
    "skipped": "Skipped",
    "not_run": "Not run",
    "undecided": "Undecided",
}


@dataclasses.dataclass(frozen=True)
class Card:
    """A figure with what it is. kind: the class of its colour."""

    label: str
    value: str
    note: str
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Headline:
    """The result in a sentence, and the three answers that a reader looks for first."""

    sentence: str
    speed: Card
    verified: Card
    fused: Card


def headline(manifest: Manifest, result: Result) -> Headline:
    """The answers of an artifact."""
    sentence = result.sentence.removeprefix(f"{result.model}: ")
    return Headline(sentence[:1].upper() + sentence[1:], _speed(result), _verified(manifest, result), _fused(result))


def _speed(result: Result) -> Card:
    if result.measured:
        first, *others = result.measured
        more = "".join(f"; {_range(time.low, time.high)} on {time.name}" for time in others)
        kind = _GOOD if first.low >= 1 else _BAD
        return Card("Times as fast, measured", _range(first.low, first.high), f"on {first.name}{more}", kind)
    if result.predicted:
        time, *rest = result.predicted
        more = "".join(f"; {other.ratio:.2f}× on {other.name}" for other in rest)
        kind = _GOOD if time.ratio >= 1 else _BAD
        return Card("Times as fast, predicted", f"{time.ratio:.2f}×", f"on {time.name}{more}", kind)
    if not result.kernels:
        return Card("Times as fast", "1×", "nothing was fused: it runs as the original does", _MUTED)
    return Card("Times as fast", "–", "not predicted; onnxopt bench measures it", _MUTED)


def _verified(manifest: Manifest, result: Result) -> Card:
    status = manifest.verify.status
    kind = {"passed": _GOOD, "failed": _BAD}.get(status, _MUTED)
    note = manifest.verify.reason or "outputs were not compared with the original's"
    if result.errors:
        worst = max(result.errors, key=lambda row: float("inf") if row.of_limit is None else row.of_limit)
        names = dict.fromkeys(row.provider.removesuffix("ExecutionProvider") for row in result.errors)
        compared = sum(row.cases for row in result.errors)
        note = f"{counted(compared, 'comparison')} with the original on {', '.join(names)}; {_worst(worst)}"
        if manifest.archs and not any(row.provider in (CUDA, EMULATED) for row in manifest.verify.executed or ()):
            note += "; CUDA kernels compiled, not run"
    return Card("Verification", _VERDICTS[status], note, kind)


def _worst(row: Errors) -> str:
    if row.of_limit is None:
        return "outputs cannot be compared"
    if row.of_limit == 0:
        return "outputs are equal"
    if row.of_limit > 1 and row.status == "passed":
        return "beyond the limit, but as near to exact results as the original is"
    if row.max_abs is None:
        return f"worst {limit_text(row.of_limit)}"
    return f"max abs error {row.max_abs:.1e}, {limit_text(row.of_limit)}"


def _fused(result: Result) -> Card:
    if not result.kernels:
        return Card("Fused", "Nothing", "no kernel of this artifact is faster than ONNX Runtime's", _MUTED)
    kernels = f"{counted(result.kernels, 'fused kernel')}, called by {counted(result.calls, 'node')}"
    launches = result.launches
    if launches.before is None or launches.after is None:
        return Card("Fused", counted(result.kernels, "kernel"), f"called by {counted(result.calls, 'node')}")
    return Card("Launches of a run", f"{launches.before:,} → {launches.after:,}", f"predicted; {kernels}")


def cards(measurements: Sequence[BenchResult], sweeps: Sequence[Sweep]) -> tuple[Card, ...]:
    """One card for each sweep, and for each measurement that is in none."""
    swept = {id(result) for sweep in sweeps for _, result in sweep.results}
    found = [_swept(sweep) for sweep in sweeps]
    for one in measurements:
        if id(one) not in swept:
            callers = f", {one.threads} threads" if one.threads > 1 else ""
            found.append(Card(f"Speed, {one.where}", f"{one.ratio:.2f}×", one.case + callers, _mood(one.ratio)))
    return tuple(found)


def _swept(sweep: Sweep) -> Card:
    ratios = [result.ratio for _, result in sweep.results]
    values = [value for value, _ in sweep.results]
    sizes = f"{values[0]:,} to {values[-1]:,}"
    note = f"{sizes}, {sweep.fixed.replace(' = ', '=')}" if sweep.fixed else sizes
    return Card(f"Speed by {sweep.name}, {sweep.where}", _range(min(ratios), max(ratios)), note, _mood(min(ratios)))


def _range(low: float, high: float) -> str:
    """ "1.31×", or "1.20–1.50×"."""
    ends = dict.fromkeys((f"{low:.2f}", f"{high:.2f}"))
    return "\N{EN DASH}".join(ends) + "×"


def _mood(ratio: float) -> str:
    return _GOOD if ratio >= 1 else _BAD

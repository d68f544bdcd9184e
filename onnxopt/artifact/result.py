"""What optimizing changed, as figures: what `optimize` prints as a table, and Python has as `Artifact.result`."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnxopt.artifact import layout
from onnxopt.artifact.folder import hash_file
from onnxopt.artifact.manifest import Manifest, Predicted
from onnxopt.artifact.report.facts import Facts, Graph, read_facts
from onnxopt.artifact.report.gpus import FIRST
from onnxopt.artifact.summary import counted, predicted_rows, status_text, unmeasured
from onnxopt.errors import OnnxoptError
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.runtime import devices
from onnxopt.runtime.gpus import find_gpu
from onnxopt.runtime.sessions import CPU, CUDA
from onnxopt.verification.check import Check
from onnxopt.verification.verify import VerificationReport

FUSED = "onnxopt"  # domain of all fused functions together, in `Result.operators`
_GPUS, _NAMED = 2, 4  # of the predicted times: those shown where no GPU was named, and at most
_GAIN = 1.02  # times as fast, below which nobody measures it


@dataclasses.dataclass(frozen=True)
class Change:
    """A figure of the original and of the optimized model; None where it is not known."""

    before: int | None
    after: int | None


@dataclasses.dataclass(frozen=True)
class PredictedTime:
    """Milliseconds of a run on a GPU, see runtime/predicted.py. gpu: key of the catalogue. note: "" or a warning."""

    gpu: str
    name: str
    before_ms: float
    after_ms: float
    ratio: float
    note: str


@dataclasses.dataclass(frozen=True)
class MeasuredTime:
    """How many times as fast a device ran the artifact: the least and the greatest ratio of its benchmarks.

    name: the device's, as the driver spells it, else the execution provider's.
    """

    name: str
    low: float
    high: float

    @property
    def text(self) -> str:
        """ "1.31", or "1.20 to 1.50"."""
        low, high = f"{self.low:.2f}", f"{self.high:.2f}"
        return low if low == high else f"{low} to {high}"


@dataclasses.dataclass(frozen=True)
class Errors:
    """How a provider's outputs differ from the original's, with the library or without it.

    status: "passed", "FAILED" or "UNDECIDED". The errors are those of the output and case that are nearest to their
    limit: over all its elements the largest and the mean, absolute and relative; None where nothing differs, or the
    output is no float. differing: share of elements that differ, where it is none. of_limit: the worst element's
    difference over what is allowed; None where the outputs cannot be compared. why_beyond: why the output passes where
    that is above 1: the original itself is as far from exact results.
    """

    provider: str
    library: bool
    status: str
    cases: int
    output: str = ""
    case: str = ""
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    mean_rel: float | None = None
    differing: float | None = None
    of_limit: float | None = 0.0
    why_beyond: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """What optimizing changed.

    operators: of the graph, by name; the calls of all fused functions together have the name "onnxopt". nodes,
    launches, bytes_moved: of the whole model, the last two predicted at `sizes` of dynamic dims; fusion/work.py says
    what a node and a launch is. file_bytes: of the model with its weights. library_bytes: of the kernels and the
    library. kernels, calls: fused functions, and the nodes that call them. errors: a row for each provider, with the
    library and without it. measured: of the report's benchmarks on GPUs, or on any device where there are no kernels
    for GPUs. sentence: the result in plain words. next: the command to try next.
    """

    model: str
    operators: dict[str, Change]
    nodes: Change
    launches: Change
    bytes_moved: Change
    sizes: dict[str, int]
    file_bytes: Change
    library_bytes: int
    kernels: int
    calls: int
    predicted: tuple[PredictedTime, ...]
    measured: tuple[MeasuredTime, ...]
    verify: str
    errors: tuple[Errors, ...]
    sentence: str
    next: str


def of(path: Path, manifest: Manifest, facts: Facts) -> Result:
    """The result of an artifact, with times on the GPUs that the user named, else this machine's, else common ones."""
    before, after = facts.before, facts.after
    times, timed = predicted_times(manifest, facts.gpus), _measured(manifest, facts)
    files = {name: file.bytes for name, file in manifest.files.items()}
    return Result(
        model=manifest.source.name,
        operators=_operators(before.ops, after.ops) if before and after else {},
        nodes=_change(before, after, "nodes"),
        launches=_change(before, after, "launches"),
        bytes_moved=_change(before, after, "moved"),
        sizes=facts.typical,
        file_bytes=Change(manifest.source.bytes, sum(n for name, n in files.items() if name.startswith(layout.MODEL))),
        library_bytes=sum(n for name, n in files.items() if name.startswith(f"{layout.LIBRARY_FOLDER}/")),
        kernels=len(manifest.kernels),
        calls=sum(len(kernel.sites) for kernel in manifest.kernels),
        predicted=times,
        measured=timed,
        verify=status_text(manifest.verify),
        errors=tuple(errors(manifest.verify)),
        sentence=_sentence(manifest, times, timed),
        next=_next(path, manifest),
    )


def read(path: Path, manifest: Manifest) -> Result:
    """The result of an artifact on disk; without counts where it has no report, or another than its manifest states."""
    report = path / layout.REPORT
    try:
        stated = report.is_file() and hash_file(report) == manifest.files.get(layout.REPORT)
        facts = read_facts(path, manifest) if stated else Facts()
    except (OnnxoptError, OSError):
        facts = Facts()
    return of(path, manifest, facts)


def _change(before: Graph | None, after: Graph | None, figure: str) -> Change:
    return Change(getattr(before, figure, None), getattr(after, figure, None))


def _operators(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Change]:
    together = Counter[str]()
    for op, count in after.items():
        together[FUSED if holds_fused(op.rpartition("::")[0]) else op] += count
    return {op: Change(before.get(op, 0), together.get(op, 0)) for op in dict.fromkeys((*before, *together))}


def predicted_times(manifest: Manifest, named: Sequence[str]) -> tuple[PredictedTime, ...]:
    """The predicted times to show. named: GPUs by key; where there is none, this machine's, else common ones."""
    if manifest.predicted is None:
        return ()
    keys, notes = _shown(manifest.predicted, named), unmeasured(manifest)
    rows = [row for key in keys for row in predicted_rows(manifest.predicted, [key])]
    return tuple(
        PredictedTime(key, name, before, after, before / after if after else 1.0, notes.get(name, ""))
        for key, (name, before, after) in zip(keys, rows, strict=True)
    )


def _measured(manifest: Manifest, facts: Facts) -> tuple[MeasuredTime, ...]:
    ratios: dict[str, list[float]] = {}
    for result in facts.measurements:
        if result.provider != CPU or not manifest.archs:
            ratios.setdefault(result.where, []).append(result.ratio)
    return tuple(MeasuredTime(name, min(found), max(found)) for name, found in ratios.items())


def _shown(predicted: Predicted, named: Sequence[str]) -> list[str]:
    """The GPUs to show: those that were named, else this machine's, else those that most people have."""
    present = {row.gpu for row in predicted.times}
    here = [gpu.key for device in devices.devices() if (gpu := find_gpu(device.name)) is not None]
    for keys in (named, here):
        if shown := [key for key in dict.fromkeys(keys) if key in present][:_NAMED]:
            return shown
    return [key for key in (*FIRST, *sorted(present - {*FIRST})) if key in present][:_GPUS]


def errors(report: VerificationReport) -> Iterator[Errors]:
    """A row for each provider with the library, then without it."""
    for provider in report.providers:
        weak = {row.output for row in report.weak if row.provider == provider}
        for library in (True, False):
            checks = [c for c in report.checks if c.provider == provider and c.library is library]
            if checks:
                status = "passed" if all(c.ok for c in checks) else "FAILED"
                if status == "passed" and weak.issuperset(c.output for c in checks):
                    status = "UNDECIDED"
                row = Errors(provider, library, status, len({c.case for c in checks}))
                yield _with_worst(row, checks)


def _with_worst(row: Errors, checks: Sequence[Check]) -> Errors:
    """The row with the errors of the output and case that are nearest to their limit."""
    if any(c.difference is None or c.difference.excess is None for c in checks):
        return dataclasses.replace(row, of_limit=None)
    check = max(checks, key=lambda c: (c.difference and c.difference.excess) or 0.0)
    worst = check.difference
    if worst is None or not worst.excess:
        return row
    row = dataclasses.replace(
        row, output=check.output, case=check.case, of_limit=worst.excess, why_beyond=check.why_beyond
    )
    if worst.ulp is None:
        return dataclasses.replace(row, differing=1 - worst.agreement)
    return dataclasses.replace(
        row, max_abs=worst.max_abs, mean_abs=worst.mean_abs, max_rel=worst.max_rel, mean_rel=worst.mean_rel
    )


def _sentence(manifest: Manifest, times: Sequence[PredictedTime], timed: Sequence[MeasuredTime]) -> str:
    """The result in plain words: how much faster, and whether it computes the same."""
    if timed:
        first_timed, *more = timed
        gain = f"measured {first_timed.text} times as fast on {first_timed.name}"
        gain += "".join(f", {time.text} on {time.name}" for time in more)
    elif not manifest.kernels:
        gain = "nothing was fused, so it runs as the original does"
    elif not times:
        gain = f"{counted(len(manifest.kernels), 'kernel')} fused"
    elif all(time.ratio < _GAIN for time in times):
        gain = "no gain is predicted"
    else:
        first, *others = times
        gain = f"predicted {first.ratio:.2f} times as fast on {first.name}"
        gain += "".join(f", {time.ratio:.2f} on {time.name}" for time in others)
    return f"{manifest.source.name}: {gain}; {_verified(manifest)}"


def _verified(manifest: Manifest) -> str:
    report, out = manifest.verify, len(manifest.left_out)
    agree = status_text(report).replace("passed", "outputs agree with the original's")
    text = agree if report.status == "passed" else f"verification: {status_text(report)}"
    if report.status in ("skipped", "not_run"):
        text = "outputs were not compared"
    return text + (f" ({counted(out, 'change')} that failed {'was' if out == 1 else 'were'} left out)" if out else "")


def _next(path: Path, manifest: Manifest) -> str:
    """The command that helps most with this artifact, and why."""
    artifact = shlex.quote(str(path))
    if not manifest.kernels:
        return f"onnxopt explain {artifact} --all (why nothing was fused)"
    if manifest.verify.status in ("skipped", "not_run"):
        original = shlex.quote(manifest.source.path or "MODEL")
        return f"onnxopt verify {original} {artifact} (nothing was compared yet)"
    ran_on_gpu = any(row.provider == CUDA and row.kernels for row in manifest.verify.executed or ())
    if manifest.archs and not ran_on_gpu:
        return f"onnxopt doctor {artifact} and onnxopt bench {artifact}, on the machine with the GPU that serves"
    return f"onnxopt bench {artifact} (times it against the original)"

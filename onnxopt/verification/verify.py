"""Run the original and the optimized model on the same inputs, with the library and without, and compare.

Every session is created once and used for all cases, one at a time; the original runs first and its outputs are kept.
Its session can be created in the background of other work (`open_early`). The original decides which shapes are
possible: a shape that it refuses is listed in the report. A time budget decides how many shapes and seeds are tried.

A difference above a tenth of the limit of verification/compare.py is accounted for: the original is run in float64,
from which the optimized model may be twice as far as the original; where that does not speak for it, the original is
run with results that change in their last place, and four times what that moves is accepted (verification/evidence.py).
Anything else above the limit fails. Outputs that say nothing are named and do not count (verification/sharpness.py).

A model of float16 or bfloat16 is only near what it means, because it rounds. So where an output differs from the
original's at all, both are compared with the original in float32, run once more: the optimized model may be at most
twice as far from it as the original at its worst, plus a tenth of the limit (rounding/exactness.py). A quantized
model is held against itself without steps of codes in the same way, where it differs by more than float32 rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.runtime import sessions
from onnxopt.verification import branches
from onnxopt.verification.check import Check, Skipped
from onnxopt.verification.compare import Limit
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.early_reference import EarlyRun, run_early
from onnxopt.verification.emulation.emulate import Emulation
from onnxopt.verification.executed import EMULATED, Execution, Profile, combined, executions
from onnxopt.verification.reference import NotRunnable, Reference
from onnxopt.verification.rounding.exactness import FromFloat64
from onnxopt.verification.sharpness import Weak

_EARLY_BELOW = 1 << 30  # bytes of a model whose session lies in memory beside other work


@dataclasses.dataclass(frozen=True)
class VerificationReport:
    """What was compared and how it went.

    status: "passed", "failed", "undecided" (nothing differs, and no output says more than `weak`), "not_run" (the
    original cannot be run here; reason says why) or "skipped" (not asked for). precision: the limits' dtype, see
    graph/traits.py; limit: relative difference allowed to floats. notes: what was done differently than usual.
    executed: which of the library's kernels each provider executed; None where that is unknown, in manifests of schema
    version 2. weak: outputs whose comparisons decide nothing, as they are constant or the original is unstable; they do
    not count as passed.
    """

    status: str
    reason: str = ""
    precision: str = ""
    limit: float = 0.0
    providers: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    executed: tuple[Execution, ...] | None = None
    weak: tuple[Weak, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether models were compared, and nothing differs."""
        return self.status in ("passed", "undecided")

    @property
    def of_models(self) -> tuple[Check, ...]:
        """The checks of whole models; those of emulated kernels have other cases and outputs."""
        return tuple(c for c in self.checks if c.provider != EMULATED)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if not c.ok)


def verify_model(
    references: Sequence[Reference],
    model: Path,
    library: Path | None,
    kernels: Mapping[str, bool] = types.MappingProxyType({}),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerificationReport:
    """Check a model against the original on every provider, with the library (where there is one) and without.

    kernels: names of the model's fused functions, and whether the library has a CPU kernel for each; the report says
    which were executed as kernels. progress: called with the number of cases that were run, and of all.
    """
    total = sum(len(reference.outputs) for reference in references) * (1 if library is None else 2)
    counted = itertools.count(1)
    checks: list[Check] = []
    weak: list[Weak] = []

    def ran() -> None:
        progress(next(counted), total)

    progress(0, total)
    executed: list[Execution] = []
    for reference in references:
        own: list[Check] = []
        if library is not None:
            with tempfile.TemporaryDirectory(dir=reference.folder) as folder:
                profile = Profile(Path(folder), kernels)
                own += reference.check(model, library, profile=profile, ran=ran)
            executed += executions(profile.executed, reference.provider, len(kernels))
            is_same = reference.provider == sessions.CPU and not any(kernels.values()) and not profile.executed
            own += _without_library(reference, model, own if is_same else (), ran)
        else:
            own += reference.check(model, None, ran=ran)
        weak += reference.weak(own)
        checks += own
        if missed := _unrun(reference, model):
            reference.notes += [missed] if missed not in reference.notes else []
    failed = [c for c in checks if not c.ok]
    first = references[0].traits
    return VerificationReport(
        status="failed" if failed else _status(checks, weak),
        reason=describe_failure(failed[0]) if failed else "",
        precision=first.precision,
        limit=Limit.of(first.precision, float_decides=False).relative,
        providers=tuple(r.provider for r in references),
        checks=tuple(checks),
        skipped=tuple(s for r in references for s in r.skipped),
        notes=tuple(dict.fromkeys(note for r in references for note in (*r.notes, *r.left_out()))),
        executed=combined(executed),
        weak=tuple(weak),
    )


def _unrun(reference: Reference, model: Path) -> str:
    """Which branches of the model no case ran, "" where each was. Not of models whose choices are drawn at random."""
    traits = reference.traits
    if "If" not in traits.operators or traits.random or traits.traps:
        return ""
    missed = branches.unrun(model, [reference.feeds(case) for case in reference.outputs], reference.folder)
    return f"{reference.provider}: {missed}" if missed else ""


def _without_library(
    reference: Reference, model: Path, checked: Sequence[Check], ran: Callable[[], None]
) -> list[Check]:
    """Check a model without the library. checked: its checks with it, where that has no kernel for this provider.

    ONNX Runtime runs the same nodes then. So where one case gives the same again, the others are left out, and a note
    says so.
    """
    ran_with_it = {check.case for check in checked}
    usual = [case for case in reference.outputs if not case.kind and str(case) in ran_with_it]
    if not checked or not usual or reference.traits.random or not all(check.ok for check in checked):
        return reference.check(model, None, ran=ran)
    checks = reference.check(model, None, usual[-1:], ran=ran)
    if not all(dataclasses.replace(check, library=True) in checked for check in checks):
        rest = set(reference.outputs) - {usual[-1]}
        return checks + reference.check(model, None, rest, ran=ran)
    reference.notes.append(
        f"{reference.provider}: the library has no kernel for it, so without the library one case alone was run"
    )
    return checks


def _status(checks: Iterable[Check], weak: Iterable[Weak]) -> str:
    """Of a report without a failed check."""
    undecided = {(row.provider, row.output) for row in weak}
    return "passed" if any((c.provider, c.output) not in undecided for c in checks) else "undecided"


def with_emulation(report: VerificationReport, emulation: Emulation) -> VerificationReport:
    """A report to which the comparison of the emulated CUDA kernels is added."""
    failed = next(iter(emulation.faults.values()), None)
    return dataclasses.replace(
        report,
        status="failed" if failed else report.status,
        reason=report.reason or (describe_failure(failed) if failed else ""),
        providers=(*report.providers, EMULATED) if emulation.checks else report.providers,
        checks=(*report.checks, *emulation.checks),
        executed=(*(report.executed or ()), emulation.execution),
    )


def completed(earlier: VerificationReport, later: VerificationReport) -> VerificationReport:
    """One report of two about the same artifact; `later` replaces what `earlier` says of the same providers.

    An earlier report without comparisons ("skipped", "not_run") is replaced.
    """
    if not earlier.checks:
        return later
    again = {*later.providers, *(row.provider for row in later.executed or () if row.provider == EMULATED)}
    checks = (*(c for c in earlier.checks if c.provider not in again), *later.checks)
    stale = tuple(f"not verified on {provider}:" for provider in again)
    failed = [c for c in checks if not c.ok]
    weak = (*(w for w in earlier.weak if w.provider not in again), *later.weak)
    return dataclasses.replace(
        earlier,
        status="failed" if failed or later.status == "failed" else _status(checks, weak),
        reason=later.reason or (describe_failure(failed[0]) if failed else ""),
        providers=tuple(dict.fromkeys((*earlier.providers, *later.providers))),
        checks=checks,
        skipped=(*(s for s in earlier.skipped if s.provider not in again), *later.skipped),
        notes=tuple(dict.fromkeys((*(n for n in earlier.notes if not n.startswith(stale)), *later.notes))),
        executed=combined((*_earlier_rows(earlier, again), *(later.executed or ()))),
        weak=weak,
    )


def _earlier_rows(earlier: VerificationReport, again: Collection[str]) -> list[Execution]:
    """What was executed earlier, without an emulation that was done again."""
    return [row for row in earlier.executed or () if row.provider != EMULATED or EMULATED not in again]


def open_early(model: Path, traits: Traits, model_bytes: int, pinned: Sizes | None) -> EarlyRun | None:
    """Run the original's first case on the CPU in the background, for `references`; None where that does not suit.

    pinned: sizes that the user gave; None where inputs are not drawn, to create the session alone. ONNX Runtime creates
    a session on one core, and Python leaves the other idle: two seconds less for BERT-base. Not for a model of a
    gigabyte or more, which would take that memory while other steps run, nor for one that draws random numbers, whose
    seeds have to be fixed first, nor for one that can end this process, or has inputs that cannot be drawn.
    """
    drawn = all(tensor.kind in ("tensor", "sequence") for tensor in traits.inputs)
    if model_bytes >= _EARLY_BELOW or traits.random or traits.traps:
        return None
    return run_early(model, traits, pinned if drawn else None)


def references(
    original: ModelFile,
    coverage: Coverage,
    *,
    folder: Path,
    providers: Sequence[str] | None = None,
    early: EarlyRun | None = None,
) -> list[Reference]:
    """The original on each provider (default: the CPU, and CUDA where a device is usable, without those that fail).

    folder: for temporary files. early: the session that `open_early` began. NotRunnable where a provider that was asked
    for cannot run it, by default where none can, or where memory does not suffice.
    """
    sessions.check_providers(providers or ())
    if sessions.CUDA in (providers or ()) and not sessions.cuda_is_usable():
        raise NotRunnable("there is no CUDA device on this machine, or no driver for it")
    _check_memory(original.bytes)
    asked = providers is not None
    if providers is None:
        providers = [sessions.CPU, sessions.CUDA] if sessions.cuda_is_usable() else [sessions.CPU]
    runnable: list[Reference] = []
    failures: dict[str, NotRunnable] = {}
    for provider in providers:
        try:
            runnable.append(
                Reference(
                    original, provider, coverage, folder=folder, early=early if provider == sessions.CPU else None
                )
            )
        except NotRunnable as error:
            if asked:
                raise
            failures[provider] = error
    if not runnable:
        raise next(iter(failures.values()))
    runnable[0].notes += [f"not verified on {provider}: {error}" for provider, error in failures.items()]
    return runnable


def describe_failure(check: Check) -> str:
    """One sentence: which output, where, by how much."""
    where = f"{check.provider} {'with' if check.library else 'without'} the library, {check.case}"
    if check.difference is None:
        return f"{check.output or 'the model'} ({where}): {check.error}"
    if check.exactness is not None and not isinstance(check.exactness, FromFloat64):
        return f"output {check.output} ({where}): {check.exactness.describe()}"
    difference = check.difference
    reason = difference.reason or f"off by up to {difference.max_abs:.3g}"
    parts = [reason] if difference.excess is None else [f"{reason}, {difference.excess:.3g} times the limit"]
    parts += [check.exactness.describe()] if check.exactness is not None else []
    if check.noise is not None:
        parts.append(f"the original moves by {check.noise:.3g} times it where results change in their last place")
    return f"output {check.output} ({where}): {'; '.join(parts)}"


def _check_memory(model_bytes: int) -> None:
    """NotRunnable where ORT, which holds the weights once and repacks some, would not fit in memory."""
    needed = int(1.5 * model_bytes)
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return  # not Linux: ONNX Runtime raises its own error
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), needed)
    if needed > free:
        raise NotRunnable(f"running it takes about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")

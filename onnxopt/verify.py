"""Verify: run the original and the optimized model on the same inputs, with the library and without, and compare.

Every session is created once and used for all cases; the original runs first and its outputs are kept, so at most one
model is in memory. The original decides which shapes are possible: a shape it refuses is listed, not hidden. How many
shapes and seeds are tried follows from a time budget.

A difference above the limit of compare.py is held against the model's own noise: the original, run once more with ORT's
optimizations off, differs from itself by as much as reordering its arithmetic costs. Up to twice that is accepted, and
the report says so (`noise`). Anything else fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt import execution, samples
from onnxopt.compare import Limit
from onnxopt.reference import Check, NotRunnable, Reference, Skipped
from onnxopt.traits import Traits


@dataclasses.dataclass(frozen=True)
class Report:
    """What was compared and how it went.

    status: "passed", "failed", "not_run" (the original cannot be run here; reason says why) or "skipped" (not asked for).
    precision: the limits' dtype, see traits.py; limit: relative difference allowed to floats.
    """

    status: str
    reason: str = ""
    precision: str = ""
    limit: float = 0.0
    providers: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if not c.ok)


def verify_model(
    references: Sequence[Reference], model: Path, library: Path | None
) -> Report:
    """Check a model against the original on every provider, with the library (where there is one) and without."""
    checks = [
        check
        for reference in references
        for lib in ([library, None] if library is not None else [None])
        for check in reference.check(model, lib)
    ]
    failed = [c for c in checks if not c.ok]
    first = references[0].traits
    return Report(
        status="failed" if failed else "passed",
        reason=describe_failure(failed[0]) if failed else "",
        precision=first.precision,
        limit=Limit.of(first.precision, float_decides=False).relative,
        providers=tuple(r.provider for r in references),
        checks=tuple(checks),
        skipped=tuple(s for r in references for s in r.skipped),
    )


def references(
    model: Path, traits: Traits, *, folder: Path, shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None, seconds: float = 2.0,
) -> list[Reference]:
    """The original on each provider that can run it (default: the CPU, and CUDA where a device is usable).

    NotRunnable where none can. seconds: how long the original may run, a provider, before no more cases are added.
    """
    pinned = samples.pin(traits.inputs, shapes or {})
    if providers is None:
        providers = [execution.CPU, execution.CUDA] if execution.cuda_is_usable() else [execution.CPU]
    found: list[Reference] = []
    reason = "no execution provider"
    for provider in providers:
        try:
            found.append(
                Reference(model, traits, provider=provider, pinned=pinned, seconds=seconds, folder=folder)
            )
        except NotRunnable as error:
            reason = str(error)
    if not found:
        raise NotRunnable(reason)
    return found


def describe_failure(check: Check) -> str:
    """One sentence: which output, where, by how much."""
    where = f"{check.provider} {'with' if check.library else 'without'} the library, {check.case}"
    if check.difference is None:
        return f"{check.output or 'the model'} ({where}): {check.error}"
    excess = check.difference.excess
    times = "" if excess is None else f", {excess:.3g} times the limit"
    return f"output {check.output} ({where}): {check.difference.reason}{times}"


